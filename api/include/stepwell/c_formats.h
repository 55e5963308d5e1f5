/* SPDX-License-Identifier: Apache-2.0
 *
 * Stepwell for C: steps as checkpoints of Orbax and as files of arrays, and checkpoints as steps.
 * <stepwell/c.h> includes this and says what holds for all functions.
 */
#pragma once

#include <stepwell/c.h>

/* NOLINTBEGIN(readability-identifier-naming): C's names */
#if defined(__cplusplus)
extern "C" {
#endif

/* ---- exports --------------------------------------------------------------------------------- */

/* How the chunks' bytes come into the directory. */
typedef enum stepwell_export_mode {
  STEPWELL_EXPORT_AUTO = 0, /* the first of the following that the destination allows */
  STEPWELL_EXPORT_LINK = 1, /* hard links of whole segments */
  STEPWELL_EXPORT_REFLINK = 2,
  STEPWELL_EXPORT_COPY = 3
} stepwell_export_mode;

/* What to do about leaves that the format cannot hold. */
typedef enum stepwell_on_unsupported {
  STEPWELL_UNSUPPORTED_ERROR = 0, /* an error that lists them all; nothing is written */
  STEPWELL_UNSUPPORTED_SKIP = 1,
  STEPWELL_UNSUPPORTED_WIDEN = 2 /* element types become the next wider one that it has */
} stepwell_on_unsupported;

typedef struct stepwell_export_options {
  size_t struct_size;
  stepwell_export_mode mode;
  int layout_v0;   /* the destination is a CheckpointManager's root, and gets a directory for it */
  int jax_leaves;  /* jax.Arrays stay so, with their shardings; 0: all are np.ndarray */
  int zarr_format; /* 2 or 3; 0: 3 */
  stepwell_on_unsupported on_unsupported;
  uint32_t file_mode;       /* permissions of the files; 0: the umask's */
  const char* const* items; /* names; none: all */
  size_t item_count;
  const char* step_prefix; /* layout_v0: "ckpt" makes ckpt_7; NULL: 7 */
  int step_digits;         /* layout_v0: at least so many, with zeros in front */
  int unnamed_default;     /* layout_v0: a single item is called "default" */
  int (*progress)(void* context, uint64_t bytes_done, uint64_t bytes_total); /* 0: stop */
  void* progress_context;
} stepwell_export_options;

typedef struct stepwell_export_report {
  size_t struct_size;
  stepwell_export_mode mode; /* the one that was used */
  uint64_t leaves;
  uint64_t chunks;
  uint64_t step_bytes;     /* stored bytes of what was exported */
  uint64_t apparent_bytes; /* what a copy of the directory would transfer */
  uint64_t written_bytes;  /* of new files */
  uint64_t skipped;        /* leaves left out */
  uint64_t widened;
} stepwell_export_report;

/* Makes a step, or what is at `path` ("": all) of it, a directory that Orbax and TensorStore read.
 * It must not exist, and it is there whole or not at all. `options` and `report` may be NULL. */
STEPWELL_C_API stepwell_code stepwell_export(stepwell_store* store, uint64_t step, const char* item,
                                             const char* path, const char* destination,
                                             const stepwell_export_options* options,
                                             stepwell_export_report* report);

typedef enum stepwell_archive_format {
  STEPWELL_ARCHIVE_SAFETENSORS = 0,
  STEPWELL_ARCHIVE_NPZ = 1
} stepwell_archive_format;

typedef struct stepwell_archive_options {
  size_t struct_size;
  stepwell_archive_format format;
  stepwell_on_unsupported on_unsupported;
  int (*progress)(void* context, uint64_t bytes_done, uint64_t bytes_total); /* 0: stop */
  void* progress_context;
} stepwell_archive_options;

/* The same as one file of arrays, whose names are paths. */
STEPWELL_C_API stepwell_code stepwell_export_archive(stepwell_store* store, uint64_t step,
                                                     const char* item, const char* path,
                                                     const char* destination,
                                                     const stepwell_archive_options* options,
                                                     stepwell_export_report* report);

/* Checks an export against the digests in it; free the report with stepwell_verify_report_free.
 * STEPWELL_FAILED_PRECONDITION: a checkpoint without digests, as Orbax writes them. */
STEPWELL_C_API stepwell_code stepwell_verify_export(const char* checkpoint,
                                                    stepwell_verify_report** report);

/* ---- views ----------------------------------------------------------------------------------- */

typedef struct stepwell_view stepwell_view; /* a directory that shows a store's steps */

typedef struct stepwell_view_stats {
  size_t struct_size;
  uint64_t shown;     /* steps that are in it */
  uint64_t not_shown; /* steps that Orbax cannot hold */
  uint64_t errors;    /* each is tried again */
  int following;      /* 0: the directory was taken away, or the view is closed */
} stepwell_view_stats;

/* Every step appears below `directory`, which must be absent, empty or an earlier view of this
 * store, as a checkpoint of Orbax, and goes when the step does. `checkpoint` (may be NULL): how
 * they look; mode and progress do not count. `poll_ms`: how often a read-only store is looked at;
 * 0: 200. The view may outlive the store, which closes it. */
STEPWELL_C_API stepwell_code stepwell_view_open(stepwell_store* store, const char* directory,
                                                const stepwell_export_options* checkpoint,
                                                int64_t poll_ms, stepwell_view** view);
/* Waits until it has what was committed when this was called. STEPWELL_DEADLINE_EXCEEDED: not
 * within `timeout_ms`. */
STEPWELL_C_API stepwell_code stepwell_view_wait(stepwell_view* view, int64_t timeout_ms);
STEPWELL_C_API stepwell_code stepwell_view_get_stats(const stepwell_view* view,
                                                     stepwell_view_stats* stats);
/* Ends it; without `keep` the steps' directories go. Idempotent. */
STEPWELL_C_API stepwell_code stepwell_view_close(stepwell_view* view, int keep);
STEPWELL_C_API void stepwell_view_free(stepwell_view* view); /* the view goes on with the store */

/* ---- imports --------------------------------------------------------------------------------- */

typedef struct stepwell_import_options {
  size_t struct_size;
  const char* const* items; /* names as in the checkpoint; none: all */
  size_t item_count;
  stepwell_if_exists if_exists;
  uint32_t threads;                   /* that read and decode; 0: between 4 and 8 */
  uint64_t memory_bytes_max;          /* an import that needs more is refused; 0: the machine's */
  int (*keep_waiting)(void* context); /* asked about every 100 ms; 0: stop */
  void* keep_waiting_context;
} stepwell_import_options;

/* Saves the Orbax checkpoint in a directory, a step's or an item's, bit for bit. Returns when it is
 * read; the rest goes on in the background. `options` may be NULL, `handle` too. */
STEPWELL_C_API stepwell_code stepwell_import(stepwell_store* store, const char* checkpoint,
                                             uint64_t step, const stepwell_import_options* options,
                                             stepwell_handle** handle);
/* Reads the checkpoint a second time and compares it with the step. STEPWELL_DATA_LOSS: they
 * differ. */
STEPWELL_C_API stepwell_code stepwell_verify_import(stepwell_store* store, const char* checkpoint,
                                                    uint64_t step,
                                                    const stepwell_import_options* options);

#if defined(__cplusplus)
}
#endif
/* NOLINTEND(readability-identifier-naming) */
