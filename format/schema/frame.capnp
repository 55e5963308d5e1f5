# SPDX-License-Identifier: Apache-2.0
# Payloads of frames, one struct per frame kind. The frame header before each payload is a fixed
# 128-byte layout (FORMAT.md, "Frames"), not Cap'n Proto. The same rules as in record.capnp: never
# remove, renumber or retype a field.
@0xe8a3b7f2c94d1056;

using Cxx = import "/capnp/c++.capnp";
using Record = import "record.capnp";
$Cxx.namespace("stepwell::format::schema");

struct Place {
  # Where a frame lies.
  segment @0 :UInt64;      # segment number
  offset @1 :UInt64;       # bytes from the start of the segment file
  lengthBytes @2 :UInt32;  # header and payload without padding; 0: no frame
  crc @3 :UInt32;          # the frame header's CRC
}

struct SegmentHeader {
  # Kind 1: the first frame of a segment, at offset 0.
  storeId @0 :Data;        # 16 bytes
  nonce @1 :Data;          # 16 random bytes, new at every use of the file
  segment @2 :UInt64;      # segment number
  createdNs @3 :Int64;     # wall time, nanoseconds since the epoch
  part @4 :UInt32;         # of a part of a group: the part; 0 for every other store
  groupId @5 :Data;        # of a part of a group: 16 bytes, the store id of part 0; else empty
}

struct Catalog {
  # Kind 2: what was live when the segment was started. A base names all of it; a catalog with a
  # `previous` one says what changed since that one.
  epoch @0 :UInt64;            # epoch of the writer
  lastCommit @1 :UInt64;       # number of the newest chain frame that this catalog covers
  lastPlace @2 :Place;         # where that frame lies; null: none yet
  live @3 :List(LiveCommit);   # base: every live commit; else those that are new or changed
  segments @4 :List(Segment);  # base: every segment, also without live bytes; else new ones
  previous @5 :Place;          # the catalog that this one changes, in a lower segment; null: a base
  gone @6 :List(UInt64);       # commits of `previous` that are not live any more
  segmentsGone @7 :List(UInt64);  # segments of `previous` that are not there any more
  pages @8 :List(Place);       # more of `live` and `segments`: frames of kind 12 of this segment
  liveCount @9 :UInt64;        # live commits that all of it amounts to
  losses @10 :List(Loss);      # that were found and not accepted: all of them
}

struct CatalogPage {
  # Kind 12: entries of the catalog before it.
  packed @0 :Data;        # one LZ4 frame: a Catalog message with only `live` and `segments`
  plainBytes @1 :UInt64;  # of that message
}

struct LiveCommit {
  # One live commit in a catalog.
  step @0 :Record.Step;  # with items, without metadata texts
  place @1 :Place;       # its commit frame
}

struct Segment {
  # One segment in a catalog.
  segment @0 :UInt64;
  lengthBytes @1 :UInt64;  # 0: not sealed yet
  nonce @2 :Data;          # 16 bytes
}

struct Epoch {
  # Kind 3: written durably when a store is opened for writing, before anything else.
  epoch @0 :UInt64;       # the new epoch, greater than every one before
  lastCommit @1 :UInt64;  # newest accepted chain frame of older epochs; beyond it they are void
  lastPlace @2 :Place;    # where it lies; null: none
}

struct Records {
  # Kind 4: leaves of a step that is still being written.
  leaves @0 :List(Record.Leaf);  # ascending (key, firstChunk)
  packed @1 :PackedLeaves;       # null: they are in `leaves`; else that is empty
}

struct PackedLeaves {
  # Leaves, compressed (FORMAT.md, "Packed leaves").
  frame @0 :Data;         # one zstd frame of a Records message whose leaves are not packed
  plainBytes @1 :UInt64;  # bytes of that message
}

struct RecordsBlock {
  # One earlier records frame of a commit.
  place @0 :Place;
  firstKey @1 :Data;      # key of its first leaf
  firstChunk @2 :UInt64;  # firstChunk of its first leaf
}

struct Commit {
  # Kind 5: makes a step durable. Kind 11: prepares a part of one, which then kills nothing.
  # Either way its records are those of `blocks`, in order, then `leaves` or those of `packed`.
  step @0 :Record.Step;
  kills @1 :List(UInt64);          # commit numbers that this commit replaces
  blocks @2 :List(RecordsBlock);
  leaves @3 :List(Record.Leaf);    # ascending (key, firstChunk)
  packed @4 :PackedLeaves;         # null: they are in `leaves`; else that is empty
}

struct Delete {
  # Kind 6: ends the life of commits.
  kills @0 :List(UInt64);  # their commit numbers
  steps @1 :List(UInt64);  # their step numbers, same order, for people and readers
}

struct Meta {
  # Kind 7: changes of what is known about live steps.
  changes @0 :List(Change);
  struct Change {
    commit @0 :UInt64;    # the live commit that is changed
    pinned @1 :Bool;      # new state of the pin, if `setPinned`
    setPinned @2 :Bool;
    setTaint @3 :Bool;
    taint @4 :Text;       # its new taint, if `setTaint`; empty: none
    setVerified @5 :Bool;
    verified @6 :Bool;    # whether verification found it whole, if `setVerified`
  }
}

struct Footer {
  # Kind 8: every frame of a sealed segment before this one, in the order of their offsets.
  frames @0 :List(FooterEntry);
}

struct FooterEntry {
  kind @0 :UInt16;    # FrameKind
  commit @1 :UInt64;  # the frame header's commit field
  place @2 :Place;
}

struct Trailer {
  # Kind 9: the last block of a sealed segment.
  footer @0 :Place;
  commitMin @1 :UInt64;  # of the chain frames in this segment; 0: none
  commitMax @2 :UInt64;
}

struct Decided {
  # Kind 10: the outcome of a step that many processes saved together.
  group @0 :Record.Group;     # of the prepared commit; state 2
  commit @1 :UInt64;          # the prepared commit
  committed @2 :Bool;         # false: aborted
  kills @3 :List(UInt64);     # commit numbers that end with it, of this store; aborted: none
  steps @4 :List(UInt64);     # their step numbers, same order, for people and readers
}

struct Loss {
  # Kind 13: chain frames that recovery found damaged or missing, without a copy.
  firstCommit @0 :UInt64;
  lastCommit @1 :UInt64;
  foundNs @2 :Int64;     # wall time, nanoseconds since the epoch
  reason @3 :Text;       # for people: what was found where
  accepted @4 :Bool;     # ends the loss of these commits: steps from before count as they are
}
