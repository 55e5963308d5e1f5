# SPDX-License-Identifier: Apache-2.0
# Records: what stands at a key-path, where its chunks lie, and what a step is. Frames consist of
# these messages (frame.capnp).
#
# Rules: never remove, renumber or retype a field; add at the end. Numbers of kinds, types and
# codecs are listed in FORMAT.md and are UInt16 here, so that a number that this version does not
# know survives a copy.
@0xd1f5c6d0a8b94e21;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("stepwell::format::schema");

struct Chunk {
  # Where the payload of one chunk lies, how to check it, and how to decode it.
  segment @0 :UInt64;       # segment number
  offset @1 :UInt64;        # bytes from the start of the segment file
  storedBytes @2 :UInt32;   # payload with its CRC trailer, >= 4
  crc @3 :UInt32;           # CRC-32C of the payload without its trailer
  logicalBytes @4 :UInt32;  # decoded length
  codec @5 :UInt16;         # CodecId
  referenced @6 :Bool;        # an earlier commit wrote the payload; this one refers to it
  hashLow @7 :UInt64;       # XXH3-128 of the decoded bytes, its two halves; both 0: not known
  hashHigh @8 :UInt64;
  bases @9 :List(Payload);  # decoded before this one: a keyframe, then differences
}

struct Payload {
  # A payload that a difference builds upon.
  segment @0 :UInt64;
  offset @1 :UInt64;
  storedBytes @2 :UInt32;
  crc @3 :UInt32;
  codec @4 :UInt16;
  referenced @5 :Bool;
}

struct Leaf {
  # One key-path of an item: an array, a value, or a node of the tree.
  key @0 :Data;             # item and path, FORMAT.md "Keys"
  kind @1 :UInt16;          # LeafKind
  valueType @2 :UInt16;     # ValueType: the type that the leaf had in memory
  container @3 :UInt16;     # ContainerKind, nodes only
  dtype @4 :UInt16;         # DType; of numbers what they were imported from
  partial @5 :Bool;         # the chunks are those of `pieces`
  weakType @6 :Bool;        # JAX's weak type
  typeName @7 :Text;        # nodes: qualified name of the container's type
  childCount @8 :UInt64;    # nodes: number of children
  shape @9 :List(UInt64);        # arrays: extents
  chunkShape @10 :List(UInt64);  # arrays: extents of every chunk, each >= 1
  shardShape @11 :List(UInt64);  # extents of one shard, those at the end may be smaller; empty: one
  prngImpl @12 :Text;       # typed JAX keys: name of the generator
  shardingJson @13 :Text;   # sharding at the time of the save, or empty
  variableTypes @14 :Text;  # what stands here is the value of a Flax NNX Variable: its type's
                            # qualified name; of nested ones, outermost first, a space between
  inlineValue @15 :Data;    # values of at most 1024 bytes; longer ones have chunks
  logicalBytes @16 :UInt64; # decoded length of the whole leaf, without padding
  chunkCount @17 :UInt64;   # chunks of the whole leaf
  firstChunk @18 :UInt64;   # index of chunks[0]; > 0 in a record that goes on with a leaf
  chunks @19 :List(Chunk);
  pieces @20 :List(Piece);  # partial leaves: the boxes that this part of a group has
  statistics @21 :Statistics;  # arrays: of the elements whose chunks are here; null: not taken
}

struct Statistics {
  # The elements of an array in a few numbers (FORMAT.md, "Statistics").
  elements @0 :UInt64;
  nonfinite @1 :UInt64;       # of these: NaN or infinite
  min @2 :Float64;            # of the finite ones; 0 where there are none
  max @3 :Float64;
  sumOfSquares @4 :Float64;
  changed @5 :UInt64;         # elements that differ from the base's
  changedCount @6 :UInt16;    # ChangedCount: 0 not known, 1 at most, 2 exact
  sum @7 :Float64;            # of the finite ones
}

struct Piece {
  # A box of a leaf, with a chunk grid that begins at its origin. A leaf's chunks are those of its
  # pieces, in their order.
  origin @0 :List(UInt64);      # index of the first element
  shape @1 :List(UInt64);       # extents, each >= 1
  chunkShape @2 :List(UInt64);  # the grid
  firstChunk @3 :UInt64;        # index, within the leaf's chunks here, of the piece's first
}

struct Item {
  # One named item of a step, e.g. "params".
  name @0 :Text;             # any bytes
  kind @1 :UInt16;           # ItemKind: 1 tree, 2 JSON, 3 files
  leafCount @2 :UInt64;      # arrays and values, not nodes
  logicalBytes @3 :UInt64;   # decoded, without padding
  storedBytes @4 :UInt64;    # payloads
  nonfinite @5 :UInt64;      # elements that are NaN or infinite, of leaves with statistics
}

struct Step {
  # One committed step, without its leaves.
  step @0 :UInt64;           # the user's step number
  commit @1 :UInt64;         # commit number, > 0
  timeNs @2 :Int64;          # wall time of the commit, nanoseconds since the epoch
  pinned @3 :Bool;           # kept whatever retention says, as of this frame or catalog
  metadataJson @4 :Text;     # user metadata, empty: none; not in catalogs
  metricsJson @5 :Text;      # metrics, empty: none; not in catalogs
  items @6 :List(Item);      # in the order of the save
  leafCount @7 :UInt64;      # sums over the items
  chunkCount @8 :UInt64;
  logicalBytes @9 :UInt64;
  storedBytes @10 :UInt64;
  group @11 :Group;          # null: saved by one process alone
  extents @12 :List(Extent); # ascending by segment; the commit frame's own is always there
  referencedBytes @13 :UInt64;  # of storedBytes: payloads that earlier commits wrote
  taint @14 :Text;           # why it is not to be resumed from, as of this frame or catalog;
                             # empty: it may be
  verified @15 :Bool;        # verification found it whole, as of this frame or catalog
  saveNs @16 :Int64;         # from the call of save until its commit began; 0: not known
}

struct Extent {
  # What a step holds in one segment.
  segment @0 :UInt64;
  endBytes @1 :UInt64;       # end of its last payload or frame there, block-aligned
  storedBytes @2 :UInt64;    # its payloads there
  blockBytes @3 :UInt64;     # the blocks of its payloads there
  frameBytes @4 :UInt64;     # the blocks of its frames there, with the copies behind them
  referencedBytes @5 :UInt64;    # of storedBytes: payloads that an earlier commit wrote
  placesLow @6 :UInt64;      # where it has nothing but such payloads: XXH3-128 of their places
  placesHigh @7 :UInt64;     # (FORMAT.md, "Chunks"); else both 0
}

struct Group {
  # This store's part of a step that many processes save together.
  groupId @0 :Data;          # 16 bytes: part 0's store id
  part @1 :UInt32;           # id of this part; not the process index, which changes
  state @2 :UInt16;          # 1 prepared, 2 decided; as of this frame or catalog
  saveId @3 :Data;           # 16 bytes: the same on all parts, new for each attempt
  parts @4 :List(UInt32);    # ids of all parts of this step, ascending; the first is 0
  decisionNumber @5 :UInt64; # decided: part 0's chain number of the decision; 0: not known
}
