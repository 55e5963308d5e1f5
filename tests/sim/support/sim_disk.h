// SPDX-License-Identifier: Apache-2.0
// A deterministic simulated machine for the tests: SimWorld is its state, SimFileSystem, SimFile
// and SimDisk are the io interfaces over it, SimClock its time. One seed, one run.
//
// The fault model. Sectors are 512 bytes.
//  1. A write, buffered or direct, is seen by the live system at once and is durable only after a
//     Sync of its file. The kernel may write any sector back earlier.
//  2. At a power cut each unsynced sector is kept, dropped, torn or garbage, on its own. Bytes of a
//     sector before the first one that the write changed survive (powersafe overwrite).
//  3. Unsynced growth (also by Allocate) is kept, dropped or cut in between; what is missing inside
//     the size reads as zeros, or as the old bytes where there were any. An unsynced truncation is
//     kept, or dropped with everything written past the cut.
//     A punched hole frees its pages at once; for a crash it is an unsynced write of zeros.
//  4. New names, renames, links and removals are durable only after SyncDirectory of the directory;
//     a new file needs both. Unsynced ones survive as a prefix, as a prefix in each directory, or
//     independently. A rename is never half done, also between directories.
//  5. Ops of SimDisk take effect and complete in any order. A sync covers the writes that completed
//     before it was submitted; those in flight with it by chance (a write that overlaps earlier
//     unsynced bytes of the same sector may take these along).
//  6. Writes in flight at a crash have landed, in part, or not at all.
//  7. A failed sync loses what it did not write: the next one reports success without it. The cache
//     goes on showing it; direct reads do not.
//  8. A failed write may have landed in part, except on a full disk, where nothing has.
//  9. SIGKILL keeps the page cache, still unsynced, and drops the locks.
// Also planned faults (errors of reads, writes and syncs, syncs that persist and fail, reads that
// end early, lost and misdirected writes), a stop at the n-th operation, a full disk, and flipped
// bits. Not modelled: short writes (Disk hides them), time, permissions.
#pragma once

#include "tests/sim/support/sim_clock.h"        // IWYU pragma: export
#include "tests/sim/support/sim_data_plane.h"   // IWYU pragma: export
#include "tests/sim/support/sim_file_system.h"  // IWYU pragma: export
#include "tests/sim/support/sim_world.h"        // IWYU pragma: export
