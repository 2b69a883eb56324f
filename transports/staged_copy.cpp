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

StagedPages::StagedPages(StagingRing& ring, std::vector<ByteRange> pages) : ring_(&ring), rest_(std::move(pages)) {
    ring_->join(*this);
    for (const ByteRange& page : rest_) {
        pages_.push_back({page, missing_});
        missing_ += page.length;
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
    return {ring_->data(*chunk_) + pages_[page].at, pages_[page].left.length};
}

void StagedPages::consume(std::size_t page, std::uint64_t bytes) {
    if (bytes == 0) return;
    ring_->moved(*this);
    Page& sent = pages_[page];
    sent = {{sent.left.addr + bytes, sent.left.length - bytes}, sent.at + bytes};
    missing_ -= bytes;
    if (missing_ != 0) return;
    ring_->give(*chunk_);
    chunk_.reset();
}

bool StagedPages::yieldChunks() {
    if (!chunk_ || !ring_->isIdle(*chunk_)) return false;
    std::uint64_t at = 0;
    for (Page& page : pages_) {
        if (page.left.length == 0) continue;
        rest_.push_back(page.left);
        page.at = at;
        at += page.left.length;
    }
    ring_->give(*chunk_);
    chunk_.reset();
    return true;
}

// --- to the GPU ----------------------------------------------------------------------------------------------------

StagedSink::~StagedSink() {
    ring_->leave(*this);
    if (chunk_) ring_->give(*chunk_);
}

std::span<std::byte> StagedSink::room() {
    if (!error_ || target_.length == 0) return {};
    if (!chunk_) {
        chunk_ = ring_->take();
        filled_ = 0;
        if (!chunk_) return {};
    }
    const std::uint64_t bytes = std::min(target_.length, ring_->chunkBytes());
    return {ring_->data(*chunk_) + filled_, bytes - filled_};
}

Status StagedSink::commit(std::uint64_t bytes) {
    if (!error_) return error_;
    ring_->moved(*this);
    filled_ += bytes;
    return filled_ == std::min(target_.length, ring_->chunkBytes()) ? send() : Status();
}

void StagedSink::giveUnused() {
    if (!chunk_ || filled_ != 0) return;
    ring_->give(*chunk_);
    chunk_.reset();
}

Status StagedSink::yield() {
    if (!error_ || !chunk_) return error_;
    if (filled_ != 0) return send();
    giveUnused();
    return {};
}

Status StagedSink::send() {
    const auto copy = ring_->begin(*chunk_, StagingRing::Way::ToDevice, {target_.addr, filled_});
    error_ = copy.status();
    // It is the ring's from now on, and anybody's when the copy has ended.
    ring_->give(*chunk_);
    chunk_.reset();
    if (copy) copies_.push_back(*copy);
    target_ = {target_.addr + filled_, target_.length - filled_};
    filled_ = 0;
    return error_;
}

bool StagedSink::isDone() { return error_.isOk() && ring_->state().isOk() && target_.length == 0 && isSettled(); }

bool StagedSink::isSettled() {
    std::erase_if(copies_, [this](std::uint64_t copy) { return !ring_->isUnderWay(copy); });
    return copies_.empty();
}

}  // namespace troupe::device
