#include "security/record_signature.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/security/auth_keys.h"

namespace troupe::test {
namespace {

const std::string kRecord = R"({"troupe":{"incarnation":"00","version":1},"name":"a"})";

TEST(RecordSignature, SignsEveryByteAndStaysJson) {
    const auto auth = authOf("a");
    const std::string record = signRecord(kRecord, auth);
    EXPECT_EQ(record.substr(0, kRecord.size() - 1), kRecord.substr(0, kRecord.size() - 1));
    const auto json = nlohmann::json::parse(record);
    EXPECT_EQ(json.size(), 3u);
    EXPECT_EQ(json["signature"].get<std::string>().size(), 64u);
    EXPECT_EQ(checkRecord(record, auth), RecordSignature::Good);
    EXPECT_TRUE(judgeRecord(RecordSignature::Good, auth));
    for (std::size_t i = 0; i < record.size(); ++i) {
        std::string changed = record;
        changed[i] = static_cast<char>(changed[i] ^ 1);
        EXPECT_NE(checkRecord(changed, auth), RecordSignature::Good) << i;
    }
}

TEST(RecordSignature, OfAnotherKeyIsWrong) {
    const std::string record = signRecord(kRecord, authOf("a"));
    EXPECT_EQ(checkRecord(record, authOf("b")), RecordSignature::Wrong);
    EXPECT_EQ(checkRecord(record, authOf("ba")), RecordSignature::Good);
    const auto judge = authOf("b");
    EXPECT_EQ(judgeRecord(RecordSignature::Wrong, judge).code(), Code::AccessDenied);
    EXPECT_THAT(judgeRecord(RecordSignature::None, judge).message(), testing::HasSubstr("not signed"));
    EXPECT_EQ(judge->counts().of(AuthRefusal::BadRecord), 2u);
}

TEST(RecordSignature, WithoutAKeyNothingIsSignedAndAllIsTaken) {
    EXPECT_EQ(signRecord(kRecord, nullptr), kRecord);
    EXPECT_EQ(signRecord(kRecord, authOf("")), kRecord);
    EXPECT_EQ(checkRecord(kRecord, nullptr), RecordSignature::None);
    EXPECT_EQ(checkRecord(signRecord(kRecord, authOf("a")), authOf("")), RecordSignature::Unchecked);
    EXPECT_TRUE(judgeRecord(RecordSignature::None, nullptr));
    EXPECT_TRUE(judgeRecord(RecordSignature::Unchecked, authOf("")));
}

TEST(RecordSignature, TextsOfAnyLengthAreLookedAt) {
    const auto auth = authOf("a");
    const std::string record = signRecord(kRecord, auth);
    for (std::size_t length = 0; length < record.size(); ++length) {
        EXPECT_EQ(checkRecord(record.substr(0, length), auth), RecordSignature::None) << length;
        EXPECT_NE(checkRecord(record.substr(length + 1), auth), RecordSignature::Good) << length;
    }
    EXPECT_EQ(signRecord("", auth), "");
    EXPECT_EQ(signRecord("[]", auth), "[]");
}

}  // namespace
}  // namespace troupe::test
