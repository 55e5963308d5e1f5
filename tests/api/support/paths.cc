// SPDX-License-Identifier: Apache-2.0
// A helper of tests/python/test_path_cases.py: what paths name in the C++ or the C API.
//
//   stepwell_paths STORE cpp|c
//
// Reads cases of paths.json, one a line, and prints a line for each: {"leaves": [...]} or
// {"error": code}.
#include <stepwell/c.h>
#include <stepwell/store.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

namespace {

using nlohmann::json;
using stepwell::KeyPath;
using stepwell::Path;
using stepwell::PathComponent;

// A number stands for an index, as in Python's tuples.
KeyPath ComponentsOf(const json& list) {
  KeyPath path;
  for (const json& part : list) {
    path.push_back(part.is_number() ? PathComponent::Index(part.get<int64_t>())
                                    : PathComponent::Key(part.get<std::string>()));
  }
  return path;
}

json Leaf(const std::string& item, const std::string& below) {
  return below.empty() ? item : item + "/" + below;
}

json CppLeaves(stepwell::Store& store, const json& test) {
  const auto step = store.Read(test["step"].get<uint64_t>());
  if (!step.ok()) return {{"error", step.status().ToString()}};
  const Path path = test.contains("path") ? Path(test["path"].get<std::string>())
                                          : Path(ComponentsOf(test["components"]));
  const auto leaves = step->Leaves(path);
  if (!leaves.ok()) return {{"error", static_cast<int>(leaves.status().code())}};
  json found = json::array();
  for (const stepwell::LeafInfo& leaf : *leaves) {
    found.push_back(Leaf(*leaf.path.item(), PathToText(*leaf.path.components())));
  }
  return {{"leaves", found}};
}

json CLeaves(stepwell_store* store, const json& test) {
  stepwell_step* step = nullptr;
  stepwell_leaf_list* list = nullptr;
  stepwell_code code = stepwell_read(store, test["step"].get<uint64_t>(), &step);
  if (code == STEPWELL_OK) {
    code = stepwell_list_leaves(step, nullptr, test["path"].get<std::string>().c_str(), &list);
  }
  json found = json::array();
  for (size_t i = 0; code == STEPWELL_OK && i < stepwell_leaf_list_count(list); ++i) {
    stepwell_leaf_info info{};
    info.struct_size = sizeof(info);
    code = stepwell_leaf_list_get(list, i, &info);
    if (code == STEPWELL_OK) found.push_back(Leaf(info.item, info.path));
  }
  stepwell_leaf_list_free(list);
  stepwell_step_free(step);
  if (code != STEPWELL_OK) return {{"error", static_cast<int>(code)}};
  return {{"leaves", found}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const bool is_c = std::string(argv[2]) == "c";
  auto store = stepwell::Store::Open(argv[1], {.read_only = true});
  stepwell_open_options options{};
  options.struct_size = sizeof(options);
  options.read_only = 1;
  stepwell_store* c_store = nullptr;
  if (!store.ok() || stepwell_open(argv[1], &options, &c_store) != STEPWELL_OK) return 1;
  for (std::string line; std::getline(std::cin, line);) {
    const json test = json::parse(line);
    std::cout << (is_c ? CLeaves(c_store, test) : CppLeaves(*store, test)).dump() << "\n";
  }
  stepwell_store_free(c_store);
  return 0;
}
