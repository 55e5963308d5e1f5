# SPDX-License-Identifier: Apache-2.0
# What processes of one machine and one version say to a store's writer, and its answers (DESIGN.md,
# "Requests"). Nothing of it is stored.
@0xd3f1c06a5b7e9284;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("stepwell::format::schema");

struct Request {
  key @0 :Text;             # proves who asks
  kind @1 :UInt8;           # what is asked for
  steps @2 :List(UInt64);
  items @3 :List(Text);     # names of items
}

struct Reply {
  key @0 :Text;             # proves who answers
  code @1 :UInt8;           # of the status; 0: it was done
  osError @2 :Int32;        # errno, or 0
  message @3 :Text;
  numbers @4 :List(UInt64); # what the report of the work has
}
