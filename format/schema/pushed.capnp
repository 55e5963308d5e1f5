# SPDX-License-Identifier: Apache-2.0
# Objects of a pushed run (FORMAT.md, "Pushed runs"). The same rules as in record.capnp: never
# remove, renumber or retype a field.
@0xb6d2f09a41c7e385;

using Cxx = import "/capnp/c++.capnp";
using Record = import "record.capnp";
$Cxx.namespace("stepwell::format::schema");

struct DataObject {
  # An object with payloads.
  sha256 @0 :Data;       # 32 bytes
  salt @1 :UInt64;       # random, new for each push that uploads it; part of its name
  sizeBytes @2 :UInt64;
}

struct PushedHead {
  # What the list of a step begins with, and all of a push's marker.
  step @0 :Record.Step;             # without extents; null in a marker
  objects @1 :List(DataObject);     # every object that the step needs
}

struct PushedLeaves {
  # The rest of a list.
  leaves @0 :List(Record.Leaf);     # ascending by key; `segment` of a payload: index in `objects`
  baseHashes @1 :List(UInt64);      # XXH3-128 of what each base decodes to, low and high half, of
                                    # all bases of all chunks in their order
}
