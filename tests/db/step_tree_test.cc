// SPDX-License-Identifier: Apache-2.0
// Which records a path names, and what errors say of those that name none. The cases that all
// interfaces share are in tests/api/paths.json.
#include "db/read/step_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "db/read/rearranged.h"

namespace stepwell::db {
namespace {

using format::PathComponent;
using format::PathPattern;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// Records of leaves and of all nodes above them, in key order.
std::vector<format::LeafRecord> RecordsOf(
    const std::vector<std::pair<std::string, format::KeyPath>>& leaves) {
  std::set<std::string> nodes;
  std::vector<format::LeafRecord> records;
  for (const auto& [item, path] : leaves) {
    for (size_t depth = 0; depth <= path.size(); ++depth) {
      const format::KeyPath above(path.begin(), path.begin() + static_cast<ptrdiff_t>(depth));
      format::LeafRecord record;
      record.key = format::EncodeLeafKey(item, above).value();
      record.kind = depth < path.size() ? format::LeafKind::kNode : format::LeafKind::kValue;
      if (nodes.insert(record.key).second) records.push_back(record);
    }
  }
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  return records;
}

format::KeyPath Keys(std::string_view text) { return format::ParseKeys(text).value(); }

std::string MessageOf(const StepTree& tree, const char* path) {
  const auto resolved = tree.Resolve(PathPattern::Parse(path).value());
  EXPECT_FALSE(resolved.ok()) << path;
  return resolved.ok() ? "" : resolved.status().message();
}

TEST(StepTree, ErrorsNameTheNearestPlacesSiblingsFirst) {
  const auto records = RecordsOf({{"state", Keys("params/enc/kernel")},
                                  {"state", Keys("params/enc/bias")},
                                  {"state", Keys("params/dec/kernel")},
                                  {"state", Keys("opt/count")}});
  const StepTree tree = StepTree::Make(9, records, true).value();
  EXPECT_THAT(MessageOf(tree, "params/enc/kernl"),
              HasSubstr("step 9 has nothing at \"params/enc/kernl\"; nearest: params/enc/kernel, "
                        "params/enc/bias"));
  EXPECT_THAT(MessageOf(tree, "kernel"), EndsWith("nearest: params/dec/kernel, params/enc/kernel"));
  EXPECT_THAT(MessageOf(tree, "zzzzzzzzz"), EndsWith("there are: opt, params"));
  EXPECT_THAT(MessageOf(tree, "opt/zzzzzzzzzzzzzz"), EndsWith("there are: opt/count"));
  EXPECT_THAT(MessageOf(tree, "opt/count/x/y/z/longer/than/all"),
              EndsWith("opt/count has nothing below it"));
  EXPECT_EQ(tree.Item("data").status().message(), "step 9 has no item \"data\"; there are: state");
}

TEST(StepTree, ErrorsOfLargeTreesAreShort) {
  std::vector<std::pair<std::string, format::KeyPath>> leaves;
  for (int i = 0; i < 20000; ++i) leaves.push_back({"state", Keys(StrCat("layer_", i, "/w"))});
  const auto records = RecordsOf(leaves);
  const StepTree tree = StepTree::Make(0, records, true).value();
  EXPECT_LT(MessageOf(tree, "layer_20000/w").size(), 200U);
  EXPECT_LT(MessageOf(tree, "q").size(), 200U);
  EXPECT_THAT(MessageOf(tree, "q"), EndsWith(", …"));
}

TEST(StepTree, AmbiguousPathsNameTheirMeanings) {
  const auto records = RecordsOf({{"state", {PathComponent::Key("d"), PathComponent::Key("0")}},
                                  {"state", {PathComponent::Key("d"), PathComponent::IntKey(0)}}});
  const StepTree tree = StepTree::Make(0, records, true).value();
  EXPECT_THAT(MessageOf(tree, "d/0"),
              HasSubstr("path \"d/0\" is ambiguous: state/d/0 (item/key/int key) or state/d/0 "
                        "(item/key/key)"));
  const auto typed =
      tree.Resolve(PathPattern::Of({PathComponent::Key("d"), PathComponent::Index(0)}));
  ASSERT_TRUE(typed.ok()) << typed.status().ToString();  // a number takes the int key
  EXPECT_EQ(typed->numbers, std::vector<size_t>{2});
}

TEST(StepTree, PlainTextFindsKeysWithSlashes) {
  const auto records = RecordsOf({{"state", {PathComponent::Key("a/b"), PathComponent::Key("c/d")}},
                                  {"state", {PathComponent::Key("a"), PathComponent::Key("x")}}});
  const StepTree tree = StepTree::Make(0, records, true).value();
  const auto at = [&](const char* path) { return tree.Resolve(*PathPattern::Parse(path)); };
  EXPECT_EQ(tree.Text(at("a/b/c/d")->numbers.front()), "state/a\\/b/c\\/d");
  EXPECT_EQ(tree.Text(at("state/a/b")->numbers.front()), "state/a\\/b");
  EXPECT_EQ(tree.Text(at("a/")->numbers.front()), "state/a");
  EXPECT_FALSE(at("a/b/c").ok());
  EXPECT_FALSE(at("a\\/b/c/d").ok());  // with a backslash every slash means what it says
}

TEST(StepTree, HostileRecordsAreDamageOrATree) {
  std::vector<format::LeafRecord> records = RecordsOf({{"state", Keys("a/b")}});
  records.push_back(records.back());
  EXPECT_EQ(StepTree::Make(0, records, true).status().code(), StatusCode::kDataLoss);
  records = RecordsOf({{"state", Keys("a/b/c")}});
  records.erase(records.begin(), records.begin() + 3);  // a leaf without what is above it
  const StepTree orphan = StepTree::Make(0, records, true).value();
  EXPECT_EQ(orphan.top(), StepTree::kRoot);
  EXPECT_EQ(orphan.end(StepTree::kRoot), 1U);
  EXPECT_FALSE(orphan.Resolve(*PathPattern::Parse("a/b/c")).ok());
}

// Serves records from memory. Counts the looks, each of which reads a page of a real store.
class CountingReader final : public StepReader {
 public:
  explicit CountingReader(std::vector<format::LeafRecord> records) : records_(std::move(records)) {
    step_.items.resize(1);
    step_.items.front().name = "state";
  }
  const format::StepRecord& step() const override { return step_; }
  Status Explain(const Status& error) const override { return error; }
  Result<std::vector<format::LeafRecord>> Leaves(std::string_view key_prefix) override {
    std::vector<format::LeafRecord> found;
    for (const format::LeafRecord& record : records_) {
      if (record.key.starts_with(key_prefix)) found.push_back(record);
    }
    return found;
  }
  Result<std::optional<format::LeafRecord>> Find(std::string_view key) override {
    ++looks;
    for (const format::LeafRecord& record : records_) {
      if (record.key == key) return std::optional(record);
    }
    return std::optional<format::LeafRecord>();
  }
  Result<LoadStats> Load(std::span<const LoadRequest> /*requests*/) override {
    return UnimplementedError("there are only records");
  }

  int looks = 0;

 private:
  format::StepRecord step_;
  std::vector<format::LeafRecord> records_;
};

// The number of records that a path leads to in a container "c" of this kind, and of looks.
std::pair<size_t, int> Lookup(format::ContainerKind kind, const format::KeyPath& children,
                              const char* path, const std::string& type_name = "") {
  std::vector<std::pair<std::string, format::KeyPath>> leaves;
  for (const PathComponent& child : children) {
    leaves.push_back({"state", {PathComponent::Key("c"), child}});
  }
  auto records = RecordsOf(leaves);
  for (format::LeafRecord& record : records) {
    if (record.kind == format::LeafKind::kNode) record.container = format::ContainerKind::kDict;
  }
  records[1].container = kind;
  records[1].type_name = type_name;
  CountingReader reader(records);
  const auto found = FindAlong(reader, *PathPattern::Parse(path), {}, /*below=*/false);
  EXPECT_TRUE(found.ok()) << found.status().ToString();
  const auto at_end = std::count_if(found->begin(), found->end(), [](const auto& record) {
    return record.kind == format::LeafKind::kValue;
  });
  return {static_cast<size_t>(at_end), reader.looks};
}

TEST(FindAlong, LooksOnlyForChildrenThatTheContainerMayHave) {
  using Container = format::ContainerKind;
  const PathComponent key = PathComponent::Key("x");
  const PathComponent attribute = PathComponent::Attribute("x");
  const PathComponent number = PathComponent::Key("3");
  const PathComponent int_key = PathComponent::IntKey(3);
  const PathComponent index = PathComponent::Index(3);
  const auto pair = [](size_t found, int looks) { return std::pair<size_t, int>(found, looks); };
  // Two looks lead to "c".
  EXPECT_EQ(Lookup(Container::kDict, {key}, "c/x"), pair(1, 3));
  EXPECT_EQ(Lookup(Container::kDict, {number, int_key}, "c/3"), pair(2, 4));
  EXPECT_EQ(Lookup(Container::kList, {index}, "c/3"), pair(1, 3));
  EXPECT_EQ(Lookup(Container::kTuple, {index}, "c/3"), pair(1, 3));
  // A component that is unusual for its container is found where the usual one is missing,
  EXPECT_EQ(Lookup(Container::kDict, {attribute}, "c/x"), pair(1, 4));
  EXPECT_EQ(Lookup(Container::kDict, {index}, "c/3"), pair(1, 6));  // a list with gaps
  EXPECT_EQ(Lookup(Container::kDict, {key}, "c/y"), pair(0, 4));
  // and an object, or a mapping of a class of its own, may have everything.
  EXPECT_EQ(Lookup(Container::kObject, {key, attribute}, "c/x"), pair(2, 4));
  EXPECT_EQ(Lookup(Container::kNamedTuple, {index, attribute}, "c/3"), pair(1, 6));
  EXPECT_EQ(Lookup(Container::kDict, {key, attribute}, "c/x", "lib.Config"), pair(2, 4));
}

TEST(StepTree, NamesTheChildThatHalfOfANameIsIn) {
  const auto records = RecordsOf({{"state", Keys("b")}, {"state", Keys("bias")}});
  const StepTree tree = StepTree::Make(9, records, true).value();
  const auto nearest = [&](const std::string& name, const std::set<std::string>& taken) {
    const auto child = tree.NearestChild(tree.top(), name, taken);
    return child ? tree.Text(*child, tree.top()) : "";
  };
  EXPECT_EQ(nearest("b2", {}), "b");
  EXPECT_EQ(nearest("bia", {}), "bias");
  EXPECT_EQ(nearest("bia", {"bias"}), "");
  EXPECT_EQ(nearest("kernel", {}), "");
}

// Moves leaves of the item `state`: from paths to names.
using Renames = std::vector<std::pair<std::string, std::vector<std::string>>>;
Result<Rearranged> Moved(const StepTree& tree, const Renames& renames,
                         const std::optional<std::vector<std::string>>& items = std::nullopt,
                         std::optional<size_t> top = std::nullopt) {
  std::vector<size_t> taken;
  std::vector<Move> moves;
  for (const auto& [from, names] : renames) {
    const auto pattern = format::PathPattern::Parse(from).value();
    const size_t leaf = tree.Resolve(pattern).value().numbers.front();
    taken.push_back(leaf);
    moves.push_back({leaf, leaf, names, std::nullopt});
  }
  return Rearrange(tree, items, taken, moves, top.value_or(tree.top()));
}

// The leaves' paths after `renames`, each with where it was.
std::vector<std::pair<std::string, std::string>> Renamed(const StepTree& tree,
                                                         const Renames& renames) {
  const auto made = Moved(tree, renames);
  EXPECT_TRUE(made.ok()) << made.status().message();
  if (!made.ok()) return {};
  const StepTree now = StepTree::Make(9, made->records, true).value();
  std::vector<std::pair<std::string, std::string>> leaves;
  for (size_t n = 0; n < made->records.size(); ++n) {
    if (!now.IsNode(n)) leaves.emplace_back(now.ShortText(n), tree.ShortText(made->origins[n]));
  }
  return leaves;
}

TEST(Rearranged, MovesLeavesWithTheNodesAboveThem) {
  const auto records = RecordsOf({{"state", Keys("é1/w")},
                                  {"state", Keys("é1/b")},
                                  {"state", Keys("é2/w")},
                                  {"state", Keys("x")}});
  const StepTree tree = StepTree::Make(9, records, true).value();
  using Leaves = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(
      Renamed(tree, {{"é1/w", {"ü", "block1", "kernel"}}, {"é2/w", {"ü", "block2", "kernel"}}}),
      (Leaves{
          {"x", "x"}, {"é1/b", "é1/b"}, {"ü/block1/kernel", "é1/w"}, {"ü/block2/kernel", "é2/w"}}));
  EXPECT_EQ(Renamed(tree, {{"é1/w", {"é1", "b"}}, {"é1/b", {"é1", "w"}}}),
            (Leaves{{"x", "x"}, {"é1/b", "é1/w"}, {"é1/w", "é1/b"}, {"é2/w", "é2/w"}}));
}

TEST(Rearranged, RefusesAPlaceThatIsTaken) {
  const auto records = RecordsOf({{"state", Keys("a/x")}, {"state", Keys("b")}});
  const StepTree tree = StepTree::Make(9, records, true).value();
  const auto why = [&](const Renames& renames) { return Moved(tree, renames).status().message(); };
  EXPECT_THAT(why({{"a/x", {"b"}}}), HasSubstr("'b' is the place of another leaf"));
  EXPECT_THAT(why({{"a/x", {"b", "y"}}}), HasSubstr("'b/y' is the place of another leaf"));
}

TEST(Rearranged, KeepsSomeItems) {
  const auto records = RecordsOf({{"a", Keys("x")}, {"b", Keys("x")}});
  const StepTree tree = StepTree::Make(9, records, false).value();
  const auto made =
      Moved(tree, {{"b/x", {"b", "y"}}}, std::vector<std::string>{"b"}, StepTree::kRoot).value();
  const StepTree now = StepTree::Make(9, made.records, false).value();
  ASSERT_EQ(made.records.size(), 2u);
  EXPECT_EQ(now.Text(1), "b/y");
  EXPECT_EQ(tree.Text(made.origins[1]), "b/x");
}

TEST(Rearranged, GivesAnArrayAnotherShapeWithoutShards) {
  auto records = RecordsOf({{"state", Keys("w")}});
  for (auto& record : records) {
    if (record.kind == format::LeafKind::kNode) continue;
    record.kind = format::LeafKind::kArray;
    record.dtype = format::DType::kFloat32;
    record.shape = record.chunk_shape = {6, 4};
    record.shard_shape = {3, 4};
    record.sharding_json = "{}";
  }
  const StepTree tree = StepTree::Make(9, records, true).value();
  const size_t leaf = tree.Resolve(format::PathPattern::Parse("w").value()).value().numbers[0];
  const std::vector<size_t> taken = {leaf};
  const std::vector<Move> moves = {{leaf, 100, {"a"}, format::Shape{4, 3}},
                                   {leaf, 101, {"b"}, std::nullopt}};
  const auto made = Rearrange(tree, std::nullopt, taken, moves, tree.top()).value();
  ASSERT_EQ(made.records.size(), 3u);
  EXPECT_EQ(made.origins, (std::vector<size_t>{0, 100, 101}));
  EXPECT_EQ(made.records[1].shape, (format::Shape{4, 3}));
  EXPECT_EQ(made.records[1].logical_bytes, 48u);
  EXPECT_TRUE(made.records[1].sharding_json.empty() && made.records[1].shard_shape.empty());
  EXPECT_EQ(made.records[2].shape, (format::Shape{6, 4}));
}

}  // namespace
}  // namespace stepwell::db
