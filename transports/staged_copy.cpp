#include "transports/staged_copy.h"

#include <algorithm>
#include <utility>

namespace troupe::device {

// --- from the GPU --------------------------------------------------------------------------------------------------

StagedSource::~StagedSource() {
    ring_->leave(*this);
    for (const Part& part : parts_) ring_->give(part.chunk);
}

Status StagedSource::advance() {
    while (error_.isOk() && rest_.length != 0 && parts_.size() < depth_) {
        const auto chunk = ring_->take();
        if (!chunk) break;
        const std::uint64_t bytes = std::min(rest_.length, ring_->chunkBytes());
        error_ = ring_->begin(*chunk, StagingRing::Way::FromDevice, {rest_.addr, bytes}).status();
        if (!error_) {
            ring_->give(*chunk);
            break;
        }
        parts_.push_back({*chunk, bytes, 0});
        rest_ = {rest_.addr + bytes, rest_.length - bytes};
    }
    // Of a lost device every copy is over, but not done.
    if (error_.isOk() && !parts_.empty()) error_ = ring_->state();
    return error_;
}

std::span<const std::byte> StagedSource::ready() const {
    if (!error_ || parts_.empty() || !ring_->isIdle(parts_.front().chunk) || !ring_->state()) return {};
    const Part& part = parts_.front();
    return {ring_->data(part.chunk) + part.consumed, part.bytes - part.consumed};
}

bool StagedSource::yieldChunks() {
    if (parts_.empty() ||
        !std::all_of(parts_.begin(), parts_.end(), [this](const Part& part) { return ring_->isIdle(part.chunk); }))
        return false;
    std::uint64_t unsent = 0;
    for (const Part& part : parts_) {
        unsent += part.bytes - part.consumed;
        ring_->give(part.chunk);
    }
    parts_.clear();
    rest_ = {rest_.addr - unsent, rest_.length + unsent};
    return true;
}

void StagedSource::consume(std::uint64_t bytes) {
    if (bytes != 0) ring_->moved(*this);
    while (bytes != 0) {
        Part& part = parts_.front();
        const std::uint64_t now = std::min(bytes, part.bytes - part.consumed);
        part.consumed += now;
        bytes -= now;
        if (part.consumed != part.bytes) return;
        ring_->give(part.chunk);
        parts_.pop_front();
    }
}

StagedPages::StagedPages(StagingRing& ring, const std::vector<ByteRange>& pages) : ring_(&ring) {
    ring_->join(*this);
    pages_.reserve(pages.size());
    for (const ByteRange& page : pages) {
        pages_.push_back({page, 0});
        missing_ += page.length;
    }
    layOut();
}

/// Where each will lie when what is left of them is copied. Of pages that fitted once what is left fits again: it
/// begins where it lay, or before that.
void StagedPages::layOut() {
    rest_.clear();
    std::uint64_t used = 0;
    for (StagedPiece& page : pages_) {
        if (page.memory.length == 0) continue;
        page.at = pieceAt(used, page.memory.addr);
        used = page.at + page.memory.length;
        rest_.push_back(page);
    }
}

StagedPages::~StagedPages() {
    ring_->leave(*this);
    if (chunk_) ring_->give(*chunk_);
}

Status StagedPages::advance() {
    if (!error_) return error_;
    if (isStarved()) {
        chunk_ = ring_->take();
        if (!chunk_) return {};
        error_ = ring_->begin(*chunk_, StagingRing::Way::FromDevice, rest_).status();
        rest_.clear();
        if (!error_) {
            ring_->give(*chunk_);
            chunk_.reset();
        }
    }
    // Of a lost device every copy is over, but not done.
    if (error_.isOk() && chunk_) error_ = ring_->state();
    return error_;
}

std::span<const std::byte> StagedPages::ready(std::size_t page) const {
    if (!error_ || !chunk_ || !ring_->isIdle(*chunk_) || !ring_->state()) return {};
    return {ring_->data(*chunk_) + pages_[page].at, pages_[page].memory.length};
}

void StagedPages::consume(std::size_t page, std::uint64_t bytes) {
    if (bytes == 0) return;
    ring_->moved(*this);
    StagedPiece& sent = pages_[page];
    sent = {{sent.memory.addr + bytes, sent.memory.length - bytes}, sent.at + bytes};
    missing_ -= bytes;
    if (missing_ != 0) return;
    ring_->give(*chunk_);
    chunk_.reset();
}

bool StagedPages::yieldChunks() {
    if (!chunk_ || !ring_->isIdle(*chunk_)) return false;
    layOut();
    ring_->give(*chunk_);
    chunk_.reset();
    return true;
}

// --- to the GPU ----------------------------------------------------------------------------------------------------

namespace {

/// Pieces that are shipped together at most: where each is a copy, a loop must come back to other work.
constexpr std::size_t kMostPieces = 64;

}  // namespace

StagedInbox::~StagedInbox() {
    ring_->leave(*this);
    if (chunk_) ring_->give(*chunk_);
    if (!pieces_.empty()) shipment_->error = Status(Code::PathReset, "it ended before what came by it was in a GPU");
}

std::span<std::byte> StagedInbox::room(const ByteRange& target) {
    const std::uint64_t chunk = ring_->chunkBytes();
    const auto begin = [&] { return shared_ ? pieceAt(used_, target.addr) : used_; };
    if (chunk_ && !pieces_.empty()) {
        const std::uint64_t wanted = shared_ ? target.length : 1;
        if (pieces_.size() == kMostPieces || begin() >= chunk || wanted > chunk - begin()) ship();
    }
    if (!chunk_) {
        used_ = 0;
        chunk_ = ring_->take();
        if (!chunk_) return {};
    }
    return {ring_->data(*chunk_) + begin(), std::min(target.length, chunk - begin())};
}

ShipmentPart StagedInbox::commit(const ByteRange& piece, bool last) {
    ring_->moved(*this);
    const std::uint64_t at = shared_ ? pieceAt(used_, piece.addr) : used_;
    StagedPiece* const before = pieces_.empty() ? nullptr : &pieces_.back();
    if (before != nullptr && before->memory.end() == piece.addr && before->at + before->memory.length == at)
        before->memory.length += piece.length;
    else
        pieces_.push_back({piece, at});
    used_ = at + piece.length;
    has_whole_ = has_whole_ || last;
    if (!shipment_) shipment_ = std::make_shared<Shipment>();
    ShipmentPart with{shipment_, pieces_.size() - 1};
    if (!shared_ && (last || used_ == ring_->chunkBytes())) ship();
    return with;
}

void StagedInbox::ship() {
    if (pieces_.empty()) return;
    StagingRing::Begun begun;
    shipment_->error = ring_->begin(*chunk_, StagingRing::Way::ToDevice, pieces_, begun);
    shipment_->copy = begun.copy;
    shipment_->whole = begun.pieces;
    // It is the ring's from now on, and anybody's when the copy has ended.
    ring_->give(*chunk_);
    chunk_.reset();
    pieces_.clear();
    used_ = 0;
    has_whole_ = false;
    shipment_.reset();
}

void StagedInbox::pause() {
    if (has_whole_ || ring_->isStarved()) ship();
    giveUnused();
}

void StagedInbox::giveUnused() {
    if (!chunk_ || !pieces_.empty()) return;
    ring_->give(*chunk_);
    chunk_.reset();
}

bool StagedInbox::yieldChunks() {
    const bool has = chunk_.has_value();
    ship();
    giveUnused();
    return has;
}

StagedSink::StagedSink(StagingRing& ring, const ByteRange& target)
    : ring_(&ring), own_(std::make_unique<StagedInbox>(ring, false)), inbox_(own_.get()), target_(target) {
    ring_->watch();
}

StagedSink::StagedSink(StagedInbox& inbox, const ByteRange& target)
    : ring_(&inbox.ring()), inbox_(&inbox), target_(target) {
    ring_->watch();
}

std::span<std::byte> StagedSink::room() {
    if (target_.length == 0 || !state()) return {};
    const auto here = inbox_->room(target_);
    // What came before may have failed just now; nothing may follow it.
    return state() ? here : std::span<std::byte>();
}

Status StagedSink::commit(std::uint64_t bytes) {
    ShipmentPart part = inbox_->commit({target_.addr, bytes}, bytes == target_.length);
    if (!parts_.empty() && parts_.back().shipment == part.shipment) {
        parts_.back().last = part.last;
    } else {
        // Else looking through them would take longer with each chunk of a long one.
        forgetSettled();
        parts_.push_back(std::move(part));
    }
    target_ = {target_.addr + bytes, target_.length - bytes};
    return state();
}

Status StagedSink::yield() {
    inbox_->yieldChunks();
    return state();
}

Status StagedSink::state() const {
    for (const ShipmentPart& part : parts_)
        if (Status error = part.error(); !error) return error;
    return ring_->state();
}

bool StagedSink::isDone() { return target_.length == 0 && state().isOk() && isSettled(); }

bool StagedSink::isSettled() {
    forgetSettled();
    return parts_.empty();
}

void StagedSink::forgetSettled() {
    std::erase_if(parts_, [this](const ShipmentPart& part) {
        return part.error().isOk() && part.shipment->copy != 0 && !ring_->isUnderWay(part.shipment->copy);
    });
}

}  // namespace troupe::device
