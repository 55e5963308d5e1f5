/* SPDX-License-Identifier: Apache-2.0
 *
 * Stepwell for C (C99), and for whatever calls C. It lies beside the C++ headers as <stepwell/c.h>,
 * so that an installation owns one directory and no general name; the library is the same one.
 *
 * Codes. Every function that can fail returns a stepwell_code; stepwell_last_error() is then the
 * message. NULL where an object, a path or a place for the result is needed is
 * STEPWELL_INVALID_ARGUMENT; on failure the place for the result is set to NULL.
 *
 * Structs start with struct_size, which the caller sets to sizeof: fields may be added at the end.
 * A size below the first version's is an error. Larger than this library knows is fine in options
 * as long as what it does not know is zero; in results it is left alone. Zeros are the defaults.
 *
 * Objects are freed with their own _free, which takes NULL, too. Strings and arrays in a result
 * belong to the object that they came from. A step, a handle and the lists may outlive the
 * store.
 *
 * Threads. Functions may be called from any thread and concurrently, except on a request being
 * filled, and _free, which must be an object's last call. Callbacks run on threads of the library
 * and must not throw or longjmp. Fork: the child cannot use what its parent opened.
 *
 * Paths are text, as for the program and Python: "params/layer/kernel"; lists of leaves also take
 * * ? and **. `item`: that of the path; NULL: "state" when saving, else found in the path.
 */
#pragma once

/* NOLINTBEGIN(readability-identifier-naming): C's names */
#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

#define STEPWELL_C_API __attribute__((visibility("default")))

/* Numbered as in absl and gRPC, but for the last two; <stepwell/status.h> says what each means
 * here. */
typedef enum stepwell_code {
  STEPWELL_OK = 0,
  STEPWELL_CANCELLED = 1,
  STEPWELL_UNKNOWN = 2,
  STEPWELL_INVALID_ARGUMENT = 3,
  STEPWELL_DEADLINE_EXCEEDED = 4,
  STEPWELL_NOT_FOUND = 5,
  STEPWELL_ALREADY_EXISTS = 6,
  STEPWELL_PERMISSION_DENIED = 7,
  STEPWELL_RESOURCE_EXHAUSTED = 8,
  STEPWELL_FAILED_PRECONDITION = 9,
  STEPWELL_ABORTED = 10,
  STEPWELL_OUT_OF_RANGE = 11,
  STEPWELL_UNIMPLEMENTED = 12,
  STEPWELL_INTERNAL = 13,
  STEPWELL_UNAVAILABLE = 14,
  STEPWELL_DATA_LOSS = 15,
  STEPWELL_OUTCOME_UNKNOWN = 32, /* a change that may or may not be durable */
  STEPWELL_IO_ERROR = 33
} stepwell_code;

/* The message of this thread's last call, if that failed, else "". Valid until its next call. */
STEPWELL_C_API const char* stepwell_last_error(void);
/* "data loss" */
STEPWELL_C_API const char* stepwell_code_name(stepwell_code code);
/* "0.1.0" */
STEPWELL_C_API const char* stepwell_version(void);

/* ---- element types --------------------------------------------------------------------------- */

typedef enum stepwell_dtype {
  STEPWELL_DTYPE_INVALID = 0,
  STEPWELL_BOOL = 1,
  STEPWELL_INT2 = 2,
  STEPWELL_INT4 = 3,
  STEPWELL_INT8 = 4,
  STEPWELL_INT16 = 5,
  STEPWELL_INT32 = 6,
  STEPWELL_INT64 = 7,
  STEPWELL_UINT2 = 8,
  STEPWELL_UINT4 = 9,
  STEPWELL_UINT8 = 10,
  STEPWELL_UINT16 = 11,
  STEPWELL_UINT32 = 12,
  STEPWELL_UINT64 = 13,
  STEPWELL_FLOAT16 = 14,
  STEPWELL_FLOAT32 = 15,
  STEPWELL_FLOAT64 = 16,
  STEPWELL_BFLOAT16 = 17,
  STEPWELL_COMPLEX64 = 18,
  STEPWELL_COMPLEX128 = 19,
  STEPWELL_FLOAT8_E3M4 = 20,
  STEPWELL_FLOAT8_E4M3 = 21,
  STEPWELL_FLOAT8_E4M3B11FNUZ = 22,
  STEPWELL_FLOAT8_E4M3FN = 23,
  STEPWELL_FLOAT8_E4M3FNUZ = 24,
  STEPWELL_FLOAT8_E5M2 = 25,
  STEPWELL_FLOAT8_E5M2FNUZ = 26,
  STEPWELL_FLOAT8_E8M0FNU = 27,
  STEPWELL_FLOAT4_E2M1FN = 28
} stepwell_dtype;

/* NumPy's name, "float32"; NULL for an unknown one. */
STEPWELL_C_API const char* stepwell_dtype_name(stepwell_dtype dtype);
/* STEPWELL_DTYPE_INVALID for an unknown name. */
STEPWELL_C_API stepwell_dtype stepwell_dtype_from_name(const char* name);
/* Bytes of one element in memory (1 for the types below a byte); 0 for an unknown dtype. */
STEPWELL_C_API size_t stepwell_dtype_bytes(stepwell_dtype dtype);

/* ---- opening --------------------------------------------------------------------------------- */

typedef struct stepwell_store stepwell_store;

typedef enum stepwell_keep_kind {
  STEPWELL_KEEP_LATEST = 0,       /* the `count` highest steps */
  STEPWELL_KEEP_EVERY = 1,        /* multiples of `count` */
  STEPWELL_KEEP_BEST = 2,         /* the `count` best by `metric` */
  STEPWELL_KEEP_DURATION = 3,     /* committed at most `duration_ns` before the newest */
  STEPWELL_KEEP_BYTES = 4,        /* the highest that take at most `count` stored bytes */
  STEPWELL_KEEP_PINNED = 5,       /* nothing but pinned steps and the newest commit */
  STEPWELL_KEEP_LAST_VERIFIED = 6 /* the newest untainted step that stepwell_verify of a store open
                                   * for writing found whole */
} stepwell_keep_kind;

/* A step stays as long as one rule keeps it or it is pinned. */
typedef struct stepwell_keep_rule {
  stepwell_keep_kind kind;
  int larger_is_better; /* STEPWELL_KEEP_BEST */
  uint64_t count;
  int64_t duration_ns;
  const char* metric;
  uint64_t reserved; /* 0 */
} stepwell_keep_rule;

typedef enum stepwell_codec {
  STEPWELL_CODEC_AUTO = 0, /* per array, from a sample */
  STEPWELL_CODEC_RAW = 1,
  STEPWELL_CODEC_BLOSC = 2
} stepwell_codec;

/* What a save does whose arrays have elements that are NaN or infinite. */
typedef enum stepwell_on_nonfinite {
  STEPWELL_ON_NONFINITE_IGNORE = 0,
  STEPWELL_ON_NONFINITE_WARN = 1, /* a log line that names step, leaves and counts */
  STEPWELL_ON_NONFINITE_ERROR = 2 /* STEPWELL_INVALID_ARGUMENT, and nothing is committed */
} stepwell_on_nonfinite;

/* 0 debug, 1 info, 2 warning, 3 error. Must not call the store. */
typedef void (*stepwell_log_function)(void* context, int level, const char* message);

typedef struct stepwell_open_options {
  size_t struct_size;
  int read_only; /* takes no lock, creates nothing, works beside a live writer */
  int no_create; /* with write access: fail where there is no store */
  stepwell_codec codec;
  uint32_t threads;               /* that encode and decode; 0: min(4, cores) */
  uint64_t staging_bytes;         /* bound of the memory for saves; 0: min(1 GiB, 1/8 of memory) */
  const stepwell_keep_rule* keep; /* none: every step stays */
  size_t keep_count;
  stepwell_log_function log; /* NULL: silent */
  void* log_context;
  const char* trace_path; /* a file for spans in Chrome's trace format; NULL: none */
  int untrusted;    /* with read_only: for a directory that may do harm; nothing is made in it */
  int shared_files; /* a new store: permissions as set by the umask, not its owner's alone */
  /* Where another process of this machine and user writes: opens for reading, and deletes, pins
   * and reclaim are asked of that process. */
  int through_writer;
  int delta;      /* stores changed chunks as differences to the commit before, where that pays */
  int statistics; /* takes stepwell_leaf_statistics of each array, and stores them with the step */
  stepwell_on_nonfinite on_nonfinite; /* others than IGNORE imply `statistics` */
} stepwell_open_options;

/* `options` may be NULL. STEPWELL_UNAVAILABLE: another process writes. */
STEPWELL_C_API stepwell_code stepwell_open(const char* path, const stepwell_open_options* options,
                                           stepwell_store** store);
/* Waits for saves, gives the lock back; the first error not reported yet. Idempotent; every
 * later call with the store or a step of it is STEPWELL_FAILED_PRECONDITION. */
STEPWELL_C_API stepwell_code stepwell_close(stepwell_store* store);
/* Closes, too, without telling an error. */
STEPWELL_C_API void stepwell_store_free(stepwell_store* store);

/* ---- saving ---------------------------------------------------------------------------------- */

typedef struct stepwell_request stepwell_request; /* leaves of one step, being collected */
typedef struct stepwell_handle stepwell_handle;   /* a save under way */

typedef struct stepwell_array {
  size_t struct_size;
  const void* data; /* element (0, 0, ...) */
  stepwell_dtype dtype;
  uint32_t rank; /* 0: one element */
  const uint64_t* shape;
  const int64_t* strides_bytes; /* any sign; NULL: C order */
  /* Not NULL: the bytes do not change until this is called with `release_context`, once, when they
   * are not read any more, on any thread; also when the call or the save fails, unless struct_size
   * is wrong. NULL: stepwell_save copies the bytes before it returns. */
  void (*release)(void* context);
  void* release_context;
} stepwell_array;

typedef enum stepwell_type {
  STEPWELL_TYPE_ARRAY = 0,
  STEPWELL_TYPE_NONE = 1,
  STEPWELL_TYPE_BOOL = 2,    /* integer */
  STEPWELL_TYPE_INT = 3,     /* integer; beyond 64 bits: data is decimal text, not NULL */
  STEPWELL_TYPE_FLOAT = 4,   /* real */
  STEPWELL_TYPE_COMPLEX = 5, /* real, imaginary */
  STEPWELL_TYPE_STR = 6,     /* data: UTF-8 */
  STEPWELL_TYPE_BYTES = 7,   /* data */
  STEPWELL_TYPE_NODE = 8     /* a container; of stepwell_list_tree only */
} stepwell_type;

typedef struct stepwell_value {
  size_t struct_size;
  stepwell_type type;
  int64_t integer;
  double real;
  double imaginary;
  const char* data; /* read: NUL-terminated, too */
  size_t data_bytes;
} stepwell_value;

STEPWELL_C_API stepwell_code stepwell_request_new(uint64_t step, stepwell_request** request);
STEPWELL_C_API void stepwell_request_free(stepwell_request* request);
/* The text and the values are copied; array memory is taken at stepwell_save. */
STEPWELL_C_API stepwell_code stepwell_put_array(stepwell_request* request, const char* item,
                                                const char* path, const stepwell_array* array);
STEPWELL_C_API stepwell_code stepwell_put_value(stepwell_request* request, const char* item,
                                                const char* path, const stepwell_value* value);
/* The same for the commonest values; `text` is UTF-8, NUL-terminated. */
STEPWELL_C_API stepwell_code stepwell_put_int(stepwell_request* request, const char* item,
                                              const char* path, int64_t number);
STEPWELL_C_API stepwell_code stepwell_put_float(stepwell_request* request, const char* item,
                                                const char* path, double number);
STEPWELL_C_API stepwell_code stepwell_put_str(stepwell_request* request, const char* item,
                                              const char* path, const char* text);

typedef enum stepwell_if_exists {
  STEPWELL_IF_EXISTS_ERROR = 0,
  STEPWELL_IF_EXISTS_REPLACE = 1,
  STEPWELL_IF_EXISTS_SKIP = 2
} stepwell_if_exists;

typedef struct stepwell_save_options {
  size_t struct_size;
  stepwell_if_exists if_exists;
  const char* metadata_json; /* NULL: none */
  const char* metrics_json;  /* a JSON object of numbers; NULL: none */
} stepwell_save_options;

/* Returns when memory without a release function may change again; the rest goes on in the
 * background. `options` may be NULL, `handle` too. Empties the request, whatever comes back. */
STEPWELL_C_API stepwell_code stepwell_save(stepwell_store* store, stepwell_request* request,
                                           const stepwell_save_options* options,
                                           stepwell_handle** handle);
/* The outcome: OK means durable and visible. STEPWELL_DEADLINE_EXCEEDED: still under way after
 * `timeout_ms` (negative: no limit). */
STEPWELL_C_API stepwell_code stepwell_handle_wait(const stepwell_handle* handle,
                                                  int64_t timeout_ms);
/* 1 or 0 (also for NULL): finished, well or not; a step that was there was kept. */
STEPWELL_C_API int stepwell_handle_done(const stepwell_handle* handle);
STEPWELL_C_API int stepwell_handle_skipped(const stepwell_handle* handle);
/* Calls `function` once when done, at once if it is; it may call the store. `message` is valid
 * during the call. */
STEPWELL_C_API stepwell_code stepwell_handle_on_complete(
    const stepwell_handle* handle,
    void (*function)(void* context, stepwell_code code, const char* message), void* context);
STEPWELL_C_API void stepwell_handle_free(stepwell_handle* handle); /* the save goes on */
/* Waits for every save so far; the first error not reported yet. */
STEPWELL_C_API stepwell_code stepwell_wait(stepwell_store* store);

/* ---- looking --------------------------------------------------------------------------------- */

typedef struct stepwell_step stepwell_step; /* a committed step, opened */
typedef struct stepwell_step_list stepwell_step_list;
typedef struct stepwell_leaf_list stepwell_leaf_list;

typedef struct stepwell_step_info {
  size_t struct_size;
  uint64_t step;
  int64_t time_ns; /* of the commit, since the epoch */
  int pinned;
  size_t item_count;
  uint64_t leaves;
  uint64_t chunks;
  uint64_t logical_bytes;
  uint64_t stored_bytes;
  const char* metadata_json; /* "" in a list, and when there is none */
  const char* metrics_json;
  const char* taint; /* why it is not to be resumed from; "": it may be */
} stepwell_step_info;

typedef struct stepwell_item_info {
  size_t struct_size;
  const char* name;
  uint64_t leaves;
  uint64_t logical_bytes;
  uint64_t stored_bytes;
  uint64_t nonfinite; /* elements that are NaN or infinite, of leaves with statistics */
} stepwell_item_info;

/* The elements of an array, taken while it was saved. Elements that are not finite count in
 * `nonfinite` and in nothing else. A complex number is one element, finite if both its parts are;
 * range and sum are those of its parts, and the norm is that of its magnitudes. Integers beyond
 * 2^53 are rounded. */
typedef struct stepwell_leaf_statistics {
  uint64_t elements;
  uint64_t nonfinite; /* NaN or infinite */
  double min;         /* with max: 0 where no element is finite */
  double max;
  double sum;
  double norm; /* L2 */
  /* Elements that differ from those of the newest commit when the save began. */
  uint64_t changed;
  int changed_count; /* 0: not known; 1: `changed` is all elements of changed chunks; 2: exact */
  int reserved;
} stepwell_leaf_statistics;

typedef struct stepwell_leaf_info {
  size_t struct_size;
  const char* item; /* with `path` it names the leaf in every call */
  const char* path;
  stepwell_type type;
  stepwell_dtype dtype; /* of an array, as all below */
  uint32_t rank;
  const uint64_t* shape;
  const uint64_t* chunk_shape; /* a slice reads whole chunks */
  uint64_t logical_bytes;
  uint64_t stored_bytes;
  const char* kind;          /* "jax", "numpy", "int", ...; of a container "dict", "list", ... */
  const char* type_name;     /* a container's type */
  uint64_t children;         /* of a container */
  const char* codec;         /* "raw", "blosc-lz4", "lz4", "delta" */
  const char* sharding_json; /* of an array, as Orbax spells it; "": none */
  int has_statistics;        /* of an array, saved with `statistics` */
  stepwell_leaf_statistics statistics;
} stepwell_leaf_info;

/* Committed steps, ascending. For a step that several processes saved, chunks and stored_bytes are
 * process 0's; stepwell_step_get_info has all. */
STEPWELL_C_API stepwell_code stepwell_list_steps(stepwell_store* store, stepwell_step_list** list);
STEPWELL_C_API size_t stepwell_step_list_count(const stepwell_step_list* list);
STEPWELL_C_API stepwell_code stepwell_step_list_get(const stepwell_step_list* list, size_t index,
                                                    stepwell_step_info* info);
STEPWELL_C_API stepwell_code stepwell_step_list_item(const stepwell_step_list* list, size_t index,
                                                     size_t item, stepwell_item_info* info);
STEPWELL_C_API void stepwell_step_list_free(stepwell_step_list* list);

/* Deleting or replacing the step does not disturb the one opened; except in a read-only store that
 * cannot write into its readers/ directory, where reads of a step that was deleted and erased
 * meanwhile fail with STEPWELL_NOT_FOUND. */
STEPWELL_C_API stepwell_code stepwell_read(stepwell_store* store, uint64_t step,
                                           stepwell_step** opened);
STEPWELL_C_API stepwell_code stepwell_read_latest(stepwell_store* store, stepwell_step** opened);
STEPWELL_C_API void stepwell_step_free(stepwell_step* step);
STEPWELL_C_API stepwell_code stepwell_step_get_info(const stepwell_step* step,
                                                    stepwell_step_info* info);
STEPWELL_C_API stepwell_code stepwell_step_get_item(const stepwell_step* step, size_t item,
                                                    stepwell_item_info* info);
/* The leaves at or below `path` ("": all), in key order. */
STEPWELL_C_API stepwell_code stepwell_list_leaves(const stepwell_step* step, const char* item,
                                                  const char* path, stepwell_leaf_list** list);
/* The same with the containers, each before what is in it. */
STEPWELL_C_API stepwell_code stepwell_list_tree(const stepwell_step* step, const char* item,
                                                const char* path, stepwell_leaf_list** list);
STEPWELL_C_API size_t stepwell_leaf_list_count(const stepwell_leaf_list* list);
STEPWELL_C_API stepwell_code stepwell_leaf_list_get(const stepwell_leaf_list* list, size_t index,
                                                    stepwell_leaf_info* info);
STEPWELL_C_API void stepwell_leaf_list_free(stepwell_leaf_list* list);

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct stepwell_read_request {
  size_t struct_size;
  const char* item;
  const char* path;
  stepwell_dtype dtype; /* what `out` holds; INVALID: not checked */
  uint32_t rank;        /* of what follows, where it is not NULL */
  const uint64_t* start;
  const uint64_t* stop;         /* the elements start <= i < stop of each axis; both NULL: all */
  void* out;                    /* the first of them */
  size_t out_bytes;             /* memory from `out` on; nothing is written behind it */
  const int64_t* strides_bytes; /* of `out`, not negative; NULL: C order */
} stepwell_read_request;

/* Arrays, or slices of them, into the caller's memory; all in one go. Checksums are verified. */
STEPWELL_C_API stepwell_code stepwell_read_arrays(const stepwell_step* step,
                                                  const stepwell_read_request* const* requests,
                                                  size_t count);
STEPWELL_C_API stepwell_code stepwell_read_array(const stepwell_step* step,
                                                 const stepwell_read_request* request);
/* Give the value back with stepwell_value_clear. */
STEPWELL_C_API stepwell_code stepwell_read_value(const stepwell_step* step, const char* item,
                                                 const char* path, stepwell_value* value);
STEPWELL_C_API void stepwell_value_clear(stepwell_value* value);

/* ---- keeping house --------------------------------------------------------------------------- */

/* Durable when they return; STEPWELL_NOT_FOUND, and nothing changed, when one is not there. */
STEPWELL_C_API stepwell_code stepwell_delete(stepwell_store* store, const uint64_t* steps,
                                             size_t count);
STEPWELL_C_API stepwell_code stepwell_delete_items(stepwell_store* store, uint64_t step,
                                                   const char* const* items, size_t count);
STEPWELL_C_API stepwell_code stepwell_set_pinned(stepwell_store* store, const uint64_t* steps,
                                                 size_t count, int pinned);
/* Tainted steps are not to be resumed from, because of `why`, 1 to 1024 bytes of UTF-8:
 * stepwell_read_latest passes them over. "" or NULL takes the taint away. */
STEPWELL_C_API stepwell_code stepwell_set_taint(stepwell_store* store, const uint64_t* steps,
                                                size_t count, const char* why);
/* Makes step `to` the newest: deletes all steps above it, or, with a `taint` that is neither NULL
 * nor "", taints them. STEPWELL_NOT_FOUND: `to` is not there; STEPWELL_INVALID_ARGUMENT: it is
 * tainted. */
STEPWELL_C_API stepwell_code stepwell_roll_back(stepwell_store* store, uint64_t to,
                                                const char* taint);

typedef struct stepwell_reclaim_report {
  size_t struct_size;
  uint64_t bytes_before; /* allocated by segments */
  uint64_t bytes_after;
  uint64_t bytes_moved;
  uint64_t bytes_punched;
} stepwell_reclaim_report;
/* Gives back all space that can be given back now. `report` may be NULL. */
STEPWELL_C_API stepwell_code stepwell_reclaim(stepwell_store* store,
                                              stepwell_reclaim_report* report);

typedef struct stepwell_verify_options {
  size_t struct_size;
  int one_step; /* only `step`, else all */
  uint64_t step;
  int (*progress)(void* context, uint64_t bytes_done, uint64_t bytes_total); /* 0: stop */
  void* progress_context;
} stepwell_verify_options;

typedef struct stepwell_verify_report stepwell_verify_report;

typedef struct stepwell_verify_info {
  size_t struct_size;
  uint64_t steps;
  uint64_t leaves;
  uint64_t chunks;
  uint64_t bytes;
  size_t problem_count;
} stepwell_verify_info;

typedef struct stepwell_problem {
  size_t struct_size;
  int has_step;
  uint64_t step;
  const char* item;
  const char* path; /* "" when it concerns no single leaf */
  const char* file;
  uint64_t offset_bytes;
  const char* message;
  int unchecked; /* not damage: a disk or the operating system failed, and it was not read */
} stepwell_problem;

/* Reads everything and checks every checksum. OK with problems in the report: damage was found, or
 * something could not be read.
 * `options` may be NULL. */
STEPWELL_C_API stepwell_code stepwell_verify(stepwell_store* store,
                                             const stepwell_verify_options* options,
                                             stepwell_verify_report** report);
STEPWELL_C_API stepwell_code stepwell_verify_report_get(const stepwell_verify_report* report,
                                                        stepwell_verify_info* info);
STEPWELL_C_API stepwell_code stepwell_verify_report_problem(const stepwell_verify_report* report,
                                                            size_t index,
                                                            stepwell_problem* problem);
STEPWELL_C_API void stepwell_verify_report_free(stepwell_verify_report* report);

typedef struct stepwell_stats {
  size_t struct_size;
  uint64_t steps;
  uint64_t pinned_steps;
  uint64_t segments;
  uint64_t total_bytes; /* of the directory, as allocated */
  uint64_t live_bytes;  /* payloads of live steps */
  uint64_t dead_bytes;  /* to be reclaimed */
  uint64_t saves;       /* since it was opened, as all below */
  uint64_t saves_failed;
  uint64_t bytes_saved;
  uint64_t bytes_written;
} stepwell_stats;
STEPWELL_C_API stepwell_code stepwell_get_stats(stepwell_store* store, stepwell_stats* stats);

#if defined(__cplusplus)
}
#endif

/* NOLINTEND(readability-identifier-naming) */

#include <stepwell/c_formats.h> /* exports, views, imports */
