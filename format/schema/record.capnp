# SPDX-License-Identifier: Apache-2.0
# Records: what stands at a key-path, where its chunks lie, and what a step is. These messages are
# the values of the index and parts of the frames (frame.capnp).
#
# Rules: never remove, renumber or retype a field; add at the end. Numbers of kinds, types and
# codecs are listed in FORMAT.md and are UInt16 here, so that a number that this version does not
# know survives a copy. A field marked "reserved" is written as its default by format version 1.
@0xd1f5c6d0a8b94e21;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("stepwell::format::schema");

struct Chunk {
  # Where the payload of one chunk lies, and how to check it.
  segment @0 :UInt64;       # segment number
  offset @1 :UInt64;        # bytes from the start of the segment file
  storedBytes @2 :UInt32;   # payload with its CRC trailer, >= 4
  crc @3 :UInt32;           # CRC-32C of the payload without its trailer
  logicalBytes @4 :UInt64;  # decoded length
  directory @5 :UInt16;     # ordinal of the store directory that holds the segment
  flags @6 :UInt16;         # reserved
  process @7 :UInt32;       # reserved: process that owns the segment, in stores of many processes
  contentHash @8 :Data;     # empty, or 16 bytes: hash of the decoded bytes (reuse of equal chunks)
  extra @9 :ChunkExtra;     # reserved: null
}

struct ChunkExtra {
  # Reserved: chunks that cannot be decoded, or repaired, from their payload alone.
  deltaBaseCommit @0 :UInt64;  # commit number of the step that holds the base, 0: no base
  deltaBaseChunk @1 :UInt64;   # chunk index of the base within the same leaf
  deltaBase @2 :Chunk;         # place of the base's payload
  parityStripe @3 :UInt64;     # stripe that protects this payload, 0: none
}

struct Leaf {
  # One key-path of an item: an array, a value, or a node of the tree.
  key @0 :Data;             # item and path, FORMAT.md "Keys"; empty in the index (it is in the key)
  kind @1 :UInt16;          # LeafKind
  valueType @2 :UInt16;     # ValueType: the type that the leaf had in memory
  container @3 :UInt16;     # ContainerKind, nodes only
  dtype @4 :UInt16;         # DType; of numbers what they were imported from
  codec @5 :UInt16;         # CodecId of every chunk of this leaf
  flags @6 :UInt16;         # bit 0: partial, the chunks are those of `pieces`
  weakType @7 :Bool;        # JAX's weak type
  typeName @8 :Text;        # nodes: qualified name of the container's type
  childCount @9 :UInt64;    # nodes: number of children
  shape @10 :List(UInt64);       # arrays: extents
  chunkShape @11 :List(UInt64);  # arrays: extents of every chunk, each >= 1
  prngImpl @12 :Text;       # typed JAX keys: name of the generator
  shardingJson @13 :Text;   # sharding at the time of the save, or empty
  inlineValue @14 :Data;    # values of at most 1024 bytes; longer ones have chunks
  logicalBytes @15 :UInt64; # decoded length of the whole leaf, without padding
  chunkCount @16 :UInt64;   # chunks of the whole leaf
  firstChunk @17 :UInt64;   # index of chunks[0]; > 0 in a record that goes on with a leaf
  chunks @18 :List(Chunk);  # in the index: empty (a key of its own each)
  shardShape @19 :List(UInt64);  # extents of one shard, those at the end may be smaller; empty: one
  pieces @20 :List(Piece);       # partial leaves: the boxes that this part of a group has
  metadataJson @21 :Text;        # reserved: user metadata of one leaf
  variableTypes @22 :Text;       # what stands here is the value of a Flax NNX Variable: its type's
                                 # qualified name; of nested ones, outermost first, a space between
}

struct Piece {
  # A box of a leaf, with a chunk grid that begins at its origin. A leaf's chunks are those of its
  # pieces, in their order.
  origin @0 :List(UInt64);      # index of the first element
  shape @1 :List(UInt64);       # extents, each >= 1
  chunkShape @2 :List(UInt64);  # the grid
  firstChunk @3 :UInt64;        # index, within the leaf's chunks here, of the piece's first
  process @4 :UInt32;           # reserved
}

struct Item {
  # One named item of a step, e.g. "params".
  name @0 :Text;             # any bytes
  kind @1 :UInt16;           # ItemKind: 1 tree, 2 JSON, 3 files
  flags @2 :UInt16;          # reserved: an item deleted from its step
  leafCount @3 :UInt64;      # arrays and values, not nodes
  logicalBytes @4 :UInt64;   # decoded, without padding
  storedBytes @5 :UInt64;    # payloads
  metadataJson @6 :Text;     # reserved: user metadata of one item
}

struct Step {
  # One committed step, without its leaves.
  step @0 :UInt64;           # the user's step number
  commit @1 :UInt64;         # commit number, > 0
  timeNs @2 :Int64;          # wall time of the commit, nanoseconds since the epoch
  draft @3 :Bool;            # reserved: filled by several commits and not final yet
  pinned @4 :Bool;           # kept whatever retention says, as of this frame; false in catalogs
  metadataJson @5 :Text;     # user metadata, empty: none
  metricsJson @6 :Text;      # metrics, empty: none
  items @7 :List(Item);      # in the order of the save
  leafCount @8 :UInt64;      # sums over the items
  chunkCount @9 :UInt64;
  logicalBytes @10 :UInt64;
  storedBytes @11 :UInt64;
  group @12 :Group;          # null: saved by one process alone
  extents @13 :List(Extent); # ascending by segment; the commit frame's own is always there
}

struct Extent {
  # What a step holds in one segment.
  segment @0 :UInt64;
  endBytes @1 :UInt64;       # end of its last payload or frame there, block-aligned
  storedBytes @2 :UInt64;    # its payloads there
  directory @3 :UInt16;
}

struct Group {
  # This store's part of a step that many processes save together.
  groupHigh @0 :UInt64;      # of the group's id (part 0's store id): bytes 0 to 7, little-endian
  groupLow @1 :UInt64;       # bytes 8 to 15
  part @2 :UInt32;           # id of this part; not the process index, which changes
  partCount @3 :UInt32;      # how many `parts` lists
  state @4 :UInt16;          # 1 prepared, 2 decided; as of this frame or catalog
  attempt @5 :UInt32;        # reserved
  treeDigest @6 :Data;       # reserved
  saveId @7 :Data;           # 16 bytes: the same on all parts, new for each attempt
  parts @8 :List(UInt32);    # ids of all parts of this step, ascending; the first is 0
  decisionNumber @9 :UInt64;  # decided: part 0's chain number of the decision; 0: not known
}
