/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mxattn: attention with mixed-precision scores, and the microscaling formats it needs.
 *
 * Every call that can fail returns a status, and mxa_error_text() then holds a sentence that names the
 * argument, the value and the rule. A call that fails has written nothing. The library never prints, exits or
 * changes precision by itself. Memory is the caller's unless a comment says otherwise; sizes are in elements
 * unless the name says bytes. Results are the same bytes for the same plan and machine, in the default
 * floating-point environment: round to nearest, subnormal numbers not flushed to zero.
 */
#ifndef MXATTN_H
#define MXATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MXA_API __attribute__((visibility("default")))
#else
#define MXA_API
#endif

#define MXA_VERSION_MAJOR 0
#define MXA_VERSION_MINOR 1
#define MXA_VERSION_PATCH 0

/* "0.1.0" */
MXA_API const char *mxa_version(void);

/* ------------------------------------------------------------------ errors */

typedef enum mxa_status {
    MXA_OK = 0,
    MXA_ERR_ARG = 1,         /* NULL pointer, contradicting options, a number outside its range */
    MXA_ERR_SHAPE = 2,       /* sizes that are negative, overflow, or do not fit each other */
    MXA_ERR_FORMAT = 3,      /* unknown format, or one that this operation cannot have */
    MXA_ERR_RULE = 4,        /* unknown scale rule, or one that the format does not have */
    MXA_ERR_LAYOUT = 5,      /* unknown layout, or its own condition is broken */
    MXA_ERR_ALIGN = 6,       /* pointer or stride not aligned as documented */
    MXA_ERR_NONFINITE = 7,   /* MXA_NONFINITE_ERROR met NaN or Inf */
    MXA_ERR_SCALE = 8,       /* a second-level factor is outside 2^-117..2^117 or NaN */
    MXA_ERR_UNSUPPORTED = 9, /* legal, but this backend has no kernel for it */
    MXA_ERR_WORKSPACE = 10,  /* workspace too small */
    MXA_ERR_MEMORY = 11,     /* an allocation failed; nothing changed */
    MXA_ERR_DEVICE = 12,     /* no such device, or its runtime failed */
    MXA_ERR_FILE = 13,       /* a file cannot be written or read, or is not what was written */
} mxa_status;

/* "MXA_ERR_ARG"; "unknown status" for a number that is none. */
MXA_API const char *mxa_status_name(mxa_status status);

/*
 * The calling thread's last error as one sentence; "" before the first. Valid until the thread's next error.
 */
MXA_API const char *mxa_error_text(void);

/* ------------------------------------------------------------------ tensors */

typedef enum mxa_dtype { MXA_DTYPE_F32 = 0, MXA_DTYPE_F16 = 1, MXA_DTYPE_BF16 = 2 } mxa_dtype;

/*
 * A view of memory that the caller owns: [batch][heads][seq][dim], 64-bit strides in elements. stride[3] is 1
 * (where shape[3] > 1); the others may be anything, also 0 or negative, but an output may not overlap itself.
 * data is aligned to its element. Inputs are never written.
 */
typedef struct mxa_tensor {
    void *data;
    mxa_dtype dtype;
    int64_t shape[4];
    int64_t stride[4];
} mxa_tensor;

/* A contiguous view. Checks nothing: the function that takes the view does. */
MXA_API mxa_tensor mxa_tensor_contiguous(void *data, mxa_dtype dtype, int64_t batch, int64_t heads,
                                         int64_t seq, int64_t dim);

/* ------------------------------------------------------------------ devices */

/* cuda:N is MXA_DEVICE_CUDA_0 + N. AUTO is the CPU: a call is told of a GPU, it does not look for one. */
typedef enum mxa_device { MXA_DEVICE_AUTO = -2, MXA_DEVICE_CPU = -1, MXA_DEVICE_CUDA_0 = 0 } mxa_device;

/*
 * "auto", "cpu" or "cuda:N". MXA_ERR_ARG for another word. Whether the device is there is the business of the
 * call that gets it.
 */
MXA_API mxa_status mxa_device_parse(const char *text, mxa_device *device);

/*
 * CUDA devices that this process sees; 0 where there is none, and mxa_error_text() then says what is missing.
 * The first call that names a CUDA device, this one too, loads libmxattn_cuda.so: the file that the
 * environment variable MXA_CUDA_LIBRARY names, or the one beside libmxattn.so, or one in the linker's search
 * path.
 */
MXA_API int mxa_device_count(void);

typedef struct mxa_device_info {
    char name[256];
    int arch_major, arch_minor; /* compute capability, 9 and 0 */
    int multiprocessors;
    int64_t memory_bytes;
    bool usable;      /* kernels are there for its architecture */
    char reason[128]; /* why it is not usable, "" if it is */
} mxa_device_info;

/* MXA_ERR_ARG a NULL pointer or no CUDA device; MXA_ERR_DEVICE it is not there. */
MXA_API mxa_status mxa_device_query(mxa_device device, mxa_device_info *info);

/*
 * Memory of a CUDA device for programs that have no CUDA runtime of their own; memory from cudaMalloc does as
 * well. Copies go to, from or within the device and are done when the call returns. stream: a cudaStream_t,
 * NULL is the default stream.
 * MXA_ERR_ARG no CUDA device; MXA_ERR_MEMORY; MXA_ERR_DEVICE.
 */
MXA_API mxa_status mxa_device_alloc(mxa_device device, size_t bytes, void **memory);
MXA_API mxa_status mxa_device_free(mxa_device device, void *memory);
MXA_API mxa_status mxa_device_copy(mxa_device device, void *to, const void *from, size_t bytes);
MXA_API mxa_status mxa_device_synchronize(mxa_device device, void *stream);

/* ------------------------------------------------------------------ formats */

typedef enum mxa_format {
    MXA_FORMAT_NONE = 0,
    MXA_FORMAT_F32 = 1,
    MXA_FORMAT_F16 = 2,
    MXA_FORMAT_BF16 = 3,
    MXA_FORMAT_MXFP8_E4M3 = 4,
    MXA_FORMAT_MXFP8_E5M2 = 5,
    MXA_FORMAT_MXFP6_E3M2 = 6,
    MXA_FORMAT_MXFP6_E2M3 = 7,
    MXA_FORMAT_MXFP4 = 8,
    MXA_FORMAT_MXINT8 = 9,
    MXA_FORMAT_NVFP4 = 10,
    MXA_FORMAT_FP8 = 11,  /* E4M3 codes with second-level factors only */
    MXA_FORMAT_INT8 = 12, /* signed bytes with second-level factors only; 0x80 is NaN */
} mxa_format;

typedef enum mxa_scale_type { MXA_SCALE_NONE = 0, MXA_SCALE_E8M0 = 1, MXA_SCALE_UE4M3 = 2 } mxa_scale_type;

typedef enum mxa_rule {
    MXA_RULE_DEFAULT = 0, /* RCEIL for MXFP8, MXFP6 and MXINT8; EVEN for MXFP4; none for the others */
    MXA_RULE_FLOOR = 1,
    MXA_RULE_RCEIL = 2,
    MXA_RULE_EVEN = 3,
} mxa_rule;

/* How many elements share one second-level factor g: value = element * block scale * g. */
typedef enum mxa_level {
    MXA_LEVEL_DEFAULT = 0, /* TOKEN for NVFP4, FP8 and INT8; NONE for the others */
    MXA_LEVEL_NONE = 1,    /* g = 1, not stored */
    MXA_LEVEL_TENSOR = 2,
    MXA_LEVEL_HEAD = 3,        /* one a (batch, head) */
    MXA_LEVEL_TOKEN_BLOCK = 4, /* one a (batch, head, rows 128t..128t+127) */
    MXA_LEVEL_TOKEN = 5,       /* one a (batch, head, row) */
} mxa_level;

/* What a block's elements lie along. TOKEN stores the transpose: rows are channels, columns tokens. */
typedef enum mxa_axis { MXA_AXIS_HEAD = 0, MXA_AXIS_TOKEN = 1 } mxa_axis;

typedef enum mxa_nonfinite {
    MXA_NONFINITE_PROPAGATE = 0, /* the block (FP8, INT8: the element) becomes NaN and is counted */
    MXA_NONFINITE_ERROR = 1,     /* the input is scanned first: MXA_ERR_NONFINITE, nothing written */
    MXA_NONFINITE_SANITIZE = 2,  /* NaN to +0, Inf to the input type's largest finite value */
} mxa_nonfinite;

/* Where scale byte (row, column) of a matrix lies; padding bytes are 0. docs/formats.md has the formulas. */
typedef enum mxa_layout {
    MXA_LAYOUT_ROW = 0,        /* [rows][columns] */
    MXA_LAYOUT_TILE_128X4 = 1, /* cuBLAS, cuDNN, CUTLASS, torchao */
    MXA_LAYOUT_AMD = 2,        /* gfx950 */
} mxa_layout;

/* Options of NVFP4, combined by |. */
enum {
    MXA_NVFP4_SCALE_UP = 1,      /* block scale rounded up */
    MXA_NVFP4_FLUSH_TINY = 2,    /* a block scale may round to 0, its elements then are 0 */
    MXA_NVFP4_POW2_G = 4,        /* a computed g is rounded up to a power of two */
    MXA_NVFP4_FOUR_OVER_SIX = 8, /* block maximum at 4 instead of 6 where that has the smaller error */
};

typedef struct mxa_format_info {
    mxa_format format;
    const char *name; /* as in recipes and files: "mxfp4" */
    int element_bits;
    int block; /* elements that share a scale byte; 0: no block scale */
    mxa_scale_type scale;
    bool quantized;        /* false for F32, F16, BF16 */
    double largest;        /* largest finite element, before any scale */
    mxa_rule default_rule; /* MXA_RULE_DEFAULT where rules do not apply */
    mxa_level default_level;
} mxa_format_info;

/* NULL if there is no such format. mxa_format_find takes a name in lower case. */
MXA_API const mxa_format_info *mxa_format_get(mxa_format format);
MXA_API const mxa_format_info *mxa_format_find(const char *name);

/* ------------------------------------------------------------------ quantising */

typedef struct mxa_quant_opts {
    size_t size; /* set by mxa_quant_default */
    mxa_rule rule;
    mxa_level level;
    mxa_axis axis;
    mxa_nonfinite nonfinite;
    mxa_layout layout; /* of the scale bytes of each (batch, head) matrix */
    unsigned nvfp4;    /* MXA_NVFP4_... */
    bool fill_tail;    /* allow a short last block, filled with zeros */
    bool rotate;       /* Hadamard rotation along dim first (AXIS_HEAD and AXIS_TOKEN alike) */
    const float *mean; /* [batch][heads][dim] subtracted before the rotation (smooth-K), or NULL; not for F32,
                          F16 and BF16, which keep the input as it is */
    const float *g;    /* second-level factors of the chosen level given by the caller, or NULL: computed */
    int threads;       /* 0: as OpenMP decides */
    mxa_device device; /* where x, the copies, mean, g and n_bad are: CPU by default */
    void *stream;      /* of CUDA devices */
} mxa_quant_opts;

MXA_API void mxa_quant_default(mxa_quant_opts *opts);

/*
 * The parts of a quantised tensor. A matrix is one (batch, head): rows tokens and columns dim, or the
 * transpose with AXIS_TOKEN. F32, F16 and BF16 copies have codes only: their little-endian bytes.
 */
typedef struct mxa_packed {
    uint8_t *codes;  /* [matrix][rows][row_bytes]; docs/formats.md, "Packing" */
    uint8_t *scales; /* [matrix][scale_bytes]; NULL where the format has none */
    float *g;        /* [g_count]; NULL at level NONE */
    /* NULL, or [matrix][ceil(seq / 128)]: 1 where those 128 tokens hold NaN or Inf. */
    uint8_t *nonfinite_tiles;
} mxa_packed;

typedef struct mxa_packed_size {
    int64_t matrices, rows, cols;    /* cols before a tail is filled */
    int64_t row_bytes;               /* of codes, the filled tail included */
    int64_t scale_cols;              /* scale bytes of a row in MXA_LAYOUT_ROW */
    int64_t matrix_scale_bytes;      /* in the chosen layout, padding included */
    int64_t code_bytes, scale_bytes; /* of the whole tensor */
    int64_t g_count;                 /* 0 at level NONE */
    int64_t tile_count;              /* of nonfinite_tiles */
} mxa_packed_size;

/* Sizes for quantising a tensor of this shape. opts NULL: the defaults. Errors as mxa_quantize. */
MXA_API mxa_status mxa_packed_sizes(mxa_format format, const mxa_quant_opts *opts, const int64_t shape[4],
                                    mxa_packed_size *out);

/*
 * Quantise x [batch][heads][seq][dim].
 *
 *   out      buffers of the sizes that mxa_packed_sizes gives
 *   n_bad    NULL, or receives the number of blocks (FP8, INT8: elements) that hold NaN or Inf
 *
 * On a CUDA device all memory, also mean, g and n_bad, is the device's, and the call returns once its work is
 * queued on stream, but for MXA_NONFINITE_ERROR, which waits for the scan. Given factors g are not checked
 * there.
 * Rounds to nearest, ties to even; what exceeds the largest code becomes it. The same bytes on every backend
 * (docs/numerics.md). A plain format (F32, F16, BF16) rounds once and saturates, NaN and Inf stay.
 * MXA_ERR_ARG a NULL pointer or contradicting options; MXA_ERR_SHAPE dim not a multiple of the block (without
 * fill_tail) or a broken shape; MXA_ERR_FORMAT, MXA_ERR_RULE, MXA_ERR_LAYOUT; MXA_ERR_ALIGN; MXA_ERR_SCALE a
 * given g; MXA_ERR_NONFINITE under that policy; MXA_ERR_MEMORY; MXA_ERR_DEVICE; MXA_ERR_UNSUPPORTED what the
 * device has no kernel for.
 */
MXA_API mxa_status mxa_quantize(const mxa_tensor *x, mxa_format format, const mxa_quant_opts *opts,
                                const mxa_packed *out, int64_t *n_bad);

/*
 * The fused quantiser: a low and a high copy of x from one read, the same bytes as two calls of mxa_quantize.
 * Each copy has its own options; the policy for NaN and Inf, threads, device and stream are the low copy's.
 * n_bad receives both counts, low first. Only AXIS_HEAD. Errors as mxa_quantize; MXA_ERR_ARG also for
 * AXIS_TOKEN or if the two policies differ, or the means of two quantised copies.
 */
MXA_API mxa_status mxa_quantize_pair(const mxa_tensor *x, mxa_format low, const mxa_quant_opts *low_opts,
                                     const mxa_packed *low_out, mxa_format high,
                                     const mxa_quant_opts *high_opts, const mxa_packed *high_out,
                                     int64_t n_bad[2]);

/*
 * Back to numbers: out [batch][heads][seq][dim], F32, or F16 or BF16 rounded once (finite overflow
 * saturates). opts as for quantising; rotate turns the values back (in fp32, before rounding); mean is added
 * last. NaN codes and scales give quiet NaN. Errors as mxa_quantize.
 */
MXA_API mxa_status mxa_dequantize(const mxa_packed *in, mxa_format format, const mxa_quant_opts *opts,
                                  const mxa_tensor *out);

/* ------------------------------------------------------------------ the steps apart, and layouts */

/*
 * mean [batch][heads][dim]: the mean of the first n_tokens tokens (-1, or more than there are: all) over
 * finite values, 0 where there is none; fp64 sum in token order, one division, rounded to fp32.
 */
MXA_API mxa_status mxa_channel_mean(const mxa_tensor *x, int64_t n_tokens, float *mean);

/* The same in the memory of a CUDA device. Queued on stream. */
MXA_API mxa_status mxa_device_channel_mean(mxa_device device, const mxa_tensor *x, int64_t n_tokens,
                                           float *mean, void *stream);

/* out = x - mean, in fp32; out is F32. May be in place. */
MXA_API mxa_status mxa_subtract_mean(const mxa_tensor *x, const float *mean, const mxa_tensor *out);

/*
 * out = x rotated by the orthonormal Hadamard matrix of numerics.md section 9, in fp32; out is F32. Its own
 * inverse.
 */
MXA_API mxa_status mxa_rotate(const mxa_tensor *x, const mxa_tensor *out);

/*
 * One code a byte to and from the packed row format: rows of cols codes, row_bytes as in mxa_packed_size with
 * fill_tail. MXA_ERR_FORMAT a plain format; MXA_ERR_ARG a NULL pointer, a code that has more bits than the
 * format; MXA_ERR_SHAPE negative or overflowing sizes.
 */
MXA_API mxa_status mxa_pack_codes(mxa_format format, const uint8_t *codes, int64_t rows, int64_t cols,
                                  uint8_t *packed);
MXA_API mxa_status mxa_unpack_codes(mxa_format format, const uint8_t *packed, int64_t rows, int64_t cols,
                                    uint8_t *codes);

/* Bytes that a [rows][cols] matrix of scales takes in a layout; -1 if layout or sizes are not valid. */
MXA_API int64_t mxa_scale_bytes(mxa_layout layout, int64_t rows, int64_t cols);

/* Move a matrix of scale bytes from one layout to another; padding becomes 0. The buffers do not overlap. */
MXA_API mxa_status mxa_relayout_scales(int64_t rows, int64_t cols, mxa_layout from, const uint8_t *src,
                                       mxa_layout to, uint8_t *dst);

/* Layouts of other software; out gets MXFP4 or NVFP4 codes (even element low) and MXA_LAYOUT_ROW scales. */
typedef enum mxa_foreign {
    MXA_FOREIGN_GGML_MXFP4 = 0, /* 17-byte blocks of 32 */
    MXA_FOREIGN_GGML_NVFP4 = 1, /* 36-byte blocks of 64; cols a multiple of 64; scale 0x7F means 0 there */
    MXA_FOREIGN_GPT_OSS = 2,    /* blocks [rows][cols / 32][16], then the scales [rows][cols / 32] */
    MXA_FOREIGN_GGML_Q8_0 = 3,  /* 34-byte blocks of 32: an fp16 step and signed bytes; of caches only */
} mxa_foreign;

/*
 * Import rows of cols elements. src holds src_bytes; out->codes and out->scales are written. No g: ggml NVFP4
 * has none (take 1). MXA_ERR_FORMAT for q8_0, whose steps no format here holds; MXA_ERR_LAYOUT if cols is not
 * a multiple of the foreign block; MXA_ERR_SHAPE if src_bytes is not what rows and cols need.
 */
MXA_API mxa_status mxa_import_rows(mxa_foreign from, const uint8_t *src, int64_t src_bytes, int64_t rows,
                                   int64_t cols, const mxa_packed *out);

/*
 * Import one vLLM NVFP4 page: K codes, K scales, V codes, V scales; k and v receive [kv_head][token][...]
 * codes and row scales. MXA_ERR_LAYOUT unless tokens % 4 = 0 and head_dim % 64 = 0.
 */
MXA_API mxa_status mxa_import_vllm_page(const uint8_t *page, int64_t page_bytes, int64_t heads_kv,
                                        int64_t tokens, int64_t head_dim, const mxa_packed *k,
                                        const mxa_packed *v);

/*
 * g = 1 / multiplier in fp32, for software that stores what it multiplied by. MXA_ERR_SCALE outside 2^+-117.
 */
MXA_API mxa_status mxa_import_multipliers(const float *multipliers, int64_t n, float *g);

/* ------------------------------------------------------------------ recipes */

#define MXA_UNLIMITED (-1)      /* of windows: no limit on that side */
#define MXA_ALL       INT64_MAX /* of diag_window: every tile is high */

typedef enum mxa_smooth {
    MXA_SMOOTH_NONE = 0,
    MXA_SMOOTH_PREFIX = 1,
    MXA_SMOOTH_FULL = 2,
    MXA_SMOOTH_GIVEN = 3
} mxa_smooth;
typedef enum mxa_pv { MXA_PV_AUTO = 0, MXA_PV_F16 = 1, MXA_PV_BF16 = 2 } mxa_pv;

/* The numeric choices of one attention. docs/algorithm.md explains each. */
typedef struct mxa_recipe {
    size_t size;               /* set by mxa_recipe_default and mxa_recipe_parse */
    bool exact;                /* float64 on the inputs as they are; all else is ignored */
    mxa_format low_q, low_k;   /* NONE: no low tiles (diag_window = MXA_ALL) */
    mxa_format high_q, high_k; /* NONE: no high tiles */
    int64_t diag_window; /* keys nearer than this are high for every query; 0: none; MXA_ALL: all tiles */
    int64_t sink_window; /* the first keys that are high; 0: none */
    bool rotate;
    mxa_smooth smooth_k;
    mxa_rule rule_q, rule_k;    /* of MX copies */
    mxa_level level_q, level_k; /* of NVFP4, FP8 and INT8 copies */
    mxa_pv pv;                  /* type in which P and V meet; AUTO: F16 if V is F16, else BF16 */
    mxa_format v;  /* storage of V in a cache; NONE: as it comes. Attention calls take V as it comes. */
    bool rotate_v; /* of caches */
} mxa_recipe;

/* dma8, the default of attention calls. */
MXA_API void mxa_recipe_default(mxa_recipe *recipe);

/*
 * Read a recipe text: a name ("dma4"), changes to one ("dma4,diag=256"), or written out
 * ("low_q=int8,low_k=mxfp4,high=bf16,diag=128,sink=128,rotate,smooth-k=prefix"). docs/algorithm.md lists the
 * keys.
 * MXA_ERR_ARG an unknown name or key (the sentence lists the known ones) or choices that contradict each
 * other;
 * MXA_ERR_FORMAT, MXA_ERR_RULE.
 */
MXA_API mxa_status mxa_recipe_parse(const char *text, mxa_recipe *recipe);

/*
 * Write the recipe out in full, so that parsing it gives the same recipe. Returns the length as snprintf
 * does.
 */
MXA_API size_t mxa_recipe_text(const mxa_recipe *recipe, char *text, size_t capacity);

/* The i-th recipe name, from 0; NULL past the end. */
MXA_API const char *mxa_recipe_name(int i);

/* ------------------------------------------------------------------ attention */

#define MXA_OFFSET_AUTO INT64_MIN /* query i stands at position i + kv_len - q_len: bottom-right alignment */

/*
 * One attention. Query head h reads key/value head h / (heads / heads_kv). All tensors are
 * [batch][heads][len][dim]; V and the output have head_dim_v.
 *
 * With cu_seqlens (both or neither, batch + 1 ascending offsets from 0, copied by the plan) the tensors are
 * packed: [1][heads][q_len][dim] where q_len and kv_len count all rows; rows past the last offset are not
 * read, and zero in the output (LSE -inf). Alignment, windows and tiles count inside each sequence.
 */
typedef struct mxa_problem {
    size_t size; /* set by mxa_problem_default */
    int64_t batch, heads, heads_kv, q_len, kv_len, head_dim, head_dim_v;
    mxa_dtype q_dtype, k_dtype, v_dtype, out_dtype;
    float softmax_scale; /* applied after the dot product; any finite number, also 0 or negative */
    float softcap;       /* 0: none */
    bool causal;         /* window_right = 0 */
    int64_t window_left, window_right; /* key j is visible from position p if p - left <= j <= p + right */
    int64_t
        q_offset; /* position of query 0, or MXA_OFFSET_AUTO; with cu_seqlens it holds for every sequence */
    const int32_t *cu_seqlens_q, *cu_seqlens_k; /* host memory, or NULL */
    mxa_device device;
    int threads; /* 0: as OpenMP decides */
} mxa_problem;

/* Fill in: these sizes, head_dim_v = head_dim, all tensors F32, softmax_scale = 1/sqrt(head_dim), no mask. */
MXA_API void mxa_problem_default(mxa_problem *p, int64_t batch, int64_t heads, int64_t heads_kv,
                                 int64_t q_len, int64_t kv_len, int64_t head_dim);

/*
 * A checked problem with its kernels chosen. Several threads may use one, each with a workspace of its own.
 */
typedef struct mxa_plan mxa_plan;

/*
 * recipe NULL: dma8. On success *plan is the caller's, to be freed with mxa_plan_free (NULL is allowed).
 * MXA_ERR_ARG, MXA_ERR_SHAPE, MXA_ERR_FORMAT, MXA_ERR_RULE as the arguments deserve; MXA_ERR_UNSUPPORTED what
 * no kernel does; MXA_ERR_DEVICE a device that is not there; MXA_ERR_MEMORY.
 */
MXA_API mxa_status mxa_plan_create(const mxa_problem *problem, const mxa_recipe *recipe, mxa_plan **plan);
MXA_API void mxa_plan_free(mxa_plan *plan);

/* Bytes of workspace that mxa_attention needs, 64-byte aligned. */
MXA_API size_t mxa_plan_work_bytes(const mxa_plan *plan);

/* Which kernel runs each part, and why the faster ones do not; returns the length as snprintf does. */
MXA_API size_t mxa_plan_describe(const mxa_plan *plan, char *text, size_t capacity);

typedef struct mxa_attention_args {
    size_t size; /* sizeof(mxa_attention_args) */
    const mxa_tensor *q, *k, *v, *out;
    float *lse; /* [batch][heads][q_len] (packed: [heads][q_len]), natural logarithm; NULL: not wanted */
    const float *sinks;     /* [heads] sink logits, or NULL */
    const float *mean;      /* MXA_SMOOTH_GIVEN: [batch][heads_kv][head_dim]; else NULL */
    const float *g_q, *g_k; /* given second-level factors of every NVFP4, FP8 and INT8 copy, one for each
                               unit of level_q, level_k (not TOKEN_BLOCK with cu_seqlens); NULL: computed */
    void *work;
    size_t work_bytes;
    void *stream; /* of CUDA devices */
} mxa_attention_args;

/*
 * out = softmax(mask(softcap(softmax_scale * q k^T))) v, by the plan's recipe. A query that sees no key gives
 * 0 and LSE -inf. Memory of masked keys never reaches a result, but for the mean of smooth-K and factors that
 * rows share, which take in every finite key of their region. No allocation.
 * MXA_ERR_ARG, MXA_ERR_SHAPE a tensor that differs from the plan's problem; MXA_ERR_ALIGN; MXA_ERR_WORKSPACE;
 * MXA_ERR_SCALE.
 */
MXA_API mxa_status mxa_attention(const mxa_plan *plan, const mxa_attention_args *args);

/*
 * Merge n partial results over disjoint keys, weighted by exp(LSE): o[i] and out [batch][heads][len][dim],
 * lse[i] and out_lse [batch][heads][len], natural logarithm. (0, -inf) changes nothing; only such parts give
 * it again. sinks [heads] or NULL: sink logits that no part has counted. out_lse may be NULL; out may be one
 * of the parts.
 */
MXA_API mxa_status mxa_merge(int n, const mxa_tensor *o, const float *const *lse, const float *sinks,
                             const mxa_tensor *out, float *out_lse);

/* ------------------------------------------------------------------ the tile map */

#define MXA_TILE 128 /* queries and keys of a score tile */

typedef enum mxa_precision { MXA_TILE_SKIP = 0, MXA_TILE_LOW = 1, MXA_TILE_HIGH = 2 } mxa_precision;

typedef struct mxa_tile_range {
    int64_t q_first, q_count; /* query tiles; the first is negative where positions are */
    int64_t k_count;          /* key tiles, from 0 */
} mxa_tile_range;

/* The tiles of sequence b of a problem, and the precision of one of them. MXA_ERR_ARG outside the range. */
MXA_API mxa_status mxa_tile_map_range(const mxa_problem *problem, int64_t b, mxa_tile_range *range);
MXA_API mxa_status mxa_tile_map_at(const mxa_problem *problem, const mxa_recipe *recipe, int64_t b,
                                   int64_t q_tile, int64_t k_tile, mxa_precision *precision);

/* ------------------------------------------------------------------ the KV cache */

/*
 * Keys and values of one layer, quantised as they come and kept in pages (docs/cache.md). Every token has a
 * row in a low page: its low copy of K, and V in the recipe's format. Tokens whose tiles the map makes high,
 * the nearest (diag) and the first (sink), have a row in a high page besides: K in its high format and V in
 * 16 bits. A page of high copies is given back once no query of a later append can read it.
 */
typedef struct mxa_cache mxa_cache;

enum { MXA_PAGE_LOW = 0, MXA_PAGE_HIGH = 1, MXA_PAGE_KINDS = 2 };

typedef struct mxa_cache_opts {
    size_t size; /* set by mxa_cache_default */
    int64_t batch, heads_kv, head_dim, head_dim_v;
    int64_t page_tokens; /* a multiple of 16 from 16 to 256 */
    /*
     * NULL: dma4. Not exact, not smooth-k=full, factors of K at level token only. v=... is the format of V
     * (none: 16 bits, the type in which P meets it).
     */
    const mxa_recipe *recipe;
    const float *mean; /* MXA_SMOOTH_GIVEN: [heads_kv][head_dim], copied; else NULL */
    /*
     * [heads_kv][head_dim_v], copied: the factor g of each channel of an INT8 or FP8 V (rotated, with
     * rotate-v), the same for all tokens; MXA_ERR_UNSUPPORTED on a device. NULL: computed, one per token.
     */
    const float *g_v;
    int64_t rewind; /* tokens that mxa_cache_truncate can always take back; they widen the near window */
    /* Pages of each kind. 0: as many as tokens need, allocated by the appends that need them. */
    int64_t pages[MXA_PAGE_KINDS];
    /*
     * Memory of the fixed number of pages, 64-byte aligned, page i at i * page_bytes of mxa_cache_size; it
     * stays the caller's and must outlive the cache. NULL: the cache allocates it.
     */
    void *memory[MXA_PAGE_KINDS];
    int threads;       /* 0: as OpenMP decides */
    mxa_device device; /* where the pages are, also those of memory: CPU by default */
} mxa_cache_opts;

/*
 * These sizes, head_dim_v = head_dim, pages of 64 tokens that are allocated as needed, recipe dma4, rewind
 * 16.
 */
MXA_API void mxa_cache_default(mxa_cache_opts *opts, int64_t batch, int64_t heads_kv, int64_t head_dim);

/* What tokens cost, all KV heads together. */
typedef struct mxa_cache_size {
    int64_t page_bytes[MXA_PAGE_KINDS];  /* 0: the recipe has no such pages */
    int64_t token_bytes[MXA_PAGE_KINDS]; /* page_bytes / page_tokens */
    int64_t high_tokens; /* high rows that a long sequence keeps after an append of one token, at most */
} mxa_cache_size;

/*
 * MXA_ERR_ARG, MXA_ERR_SHAPE, MXA_ERR_FORMAT, MXA_ERR_RULE what opts or its recipe deserve; MXA_ERR_SCALE
 * g_v; MXA_ERR_UNSUPPORTED a recipe that no cache has, a head_dim above 256; MXA_ERR_ALIGN memory.
 */
MXA_API mxa_status mxa_cache_bytes(const mxa_cache_opts *opts, mxa_cache_size *size);

/*
 * How many tokens each of the batch's sequences can have so that their pages take no more than bytes, once
 * the last of them are appended one by one: an append of many keeps the high rows of them all until the next.
 */
MXA_API mxa_status mxa_cache_plan(const mxa_cache_opts *opts, int64_t bytes, int64_t *tokens);

/*
 * An empty cache. *cache is the caller's, to be freed with mxa_cache_free (NULL is allowed). Errors as
 * mxa_cache_bytes, and MXA_ERR_MEMORY. One thread at a time may use a cache.
 *
 * Of a CUDA device: tensors, lse, sinks and work of its calls are that device's memory, counts the host's.
 * Calls return once their work is queued on the cache's stream; save, load and free wait. MXA_ERR_ARG memory
 * of elsewhere; MXA_ERR_DEVICE the device is not there, or failed: the cache is of no more use then.
 */
MXA_API mxa_status mxa_cache_create(const mxa_cache_opts *opts, mxa_cache **cache);
MXA_API void mxa_cache_free(mxa_cache *cache);

/* Tokens of each sequence, [batch], and bytes of the pages that hold them (shared pages count once). */
MXA_API mxa_status mxa_cache_lengths(const mxa_cache *cache, int64_t *lengths);
MXA_API int64_t mxa_cache_used_bytes(const mxa_cache *cache);

/*
 * Append tokens: k [batch][heads_kv][n][head_dim], v [batch][heads_kv][n][head_dim_v], of any types and
 * strides. Sequence b takes the first counts[b] of the n rows (counts NULL: all). However a sequence is cut
 * into appends, its stored bytes are the same. NaN and Inf become NaN as in mxa_quantize.
 * MXA_ERR_ARG, MXA_ERR_SHAPE, MXA_ERR_ALIGN the tensors or counts; MXA_ERR_MEMORY no page is free or none can
 * be allocated. The cache is then as it was.
 */
MXA_API mxa_status mxa_cache_append(mxa_cache *cache, const mxa_tensor *k, const mxa_tensor *v,
                                    const int64_t *counts);

typedef struct mxa_cache_attend_args {
    size_t size;               /* sizeof(mxa_cache_attend_args) */
    const mxa_tensor *q, *out; /* [batch][heads][n][head_dim], [batch][heads][n][head_dim_v] */
    const int64_t *counts;     /* [batch] queries of each sequence, or NULL: n */
    float *lse;                /* [batch][heads][n], natural logarithm, or NULL */
    const float *sinks;        /* [heads] sink logits, or NULL */
    float softmax_scale;       /* as in mxa_problem, without a default */
    float softcap;             /* 0: none */
    int64_t window_left;       /* MXA_UNLIMITED, or keys before a query that it sees */
    void *work;
    size_t work_bytes;
    /* 0: the present lengths. Of a captured attend: no sequence is longer at any launch of the graph. */
    int64_t max_length;
} mxa_cache_attend_args;

/*
 * Bytes of workspace for attends of at most n queries of each sequence to at most length tokens, 64-byte
 * aligned; 0 if the sizes do not fit.
 */
MXA_API size_t mxa_cache_work_bytes(const mxa_cache *cache, int64_t heads, int64_t n, int64_t length);

/*
 * Attention of new queries to the cache: query i of sequence b stands at the position of token
 * lengths[b] - counts[b] + i and sees that token and those before it. Rows past counts[b] are zero, LSE -inf.
 * No allocation. A row's bits do not depend on its batch mates, on the pages or on threads.
 * MXA_ERR_ARG, MXA_ERR_SHAPE, MXA_ERR_ALIGN, MXA_ERR_WORKSPACE the arguments; MXA_ERR_ARG also queries older
 * than the cache's first token, or a visible key whose page of the right kind is gone: queries may be as many
 * as the last append had tokens, and rewind more.
 */
MXA_API mxa_status mxa_cache_attend(const mxa_cache *cache, const mxa_cache_attend_args *args);

/*
 * Cut sequence b to length tokens. MXA_ERR_ARG a length above the present one, or one whose near window is no
 * longer held in high precision: up to opts.rewind tokens before the last append can be taken back, or all
 * that reach past the sink window.
 */
MXA_API mxa_status mxa_cache_truncate(mxa_cache *cache, int64_t b, int64_t length);

/* Sequence to becomes a copy of sequence from. They share pages, which an append copies before it writes. */
MXA_API mxa_status mxa_cache_fork(mxa_cache *cache, int64_t from, int64_t to);

/* Sequence b becomes what sequence from[b] was, for all b at once; from [batch]. */
MXA_API mxa_status mxa_cache_reorder(mxa_cache *cache, const int64_t *from);

/*
 * Give back n pages of both kinds from page first on (page i holds tokens i * page_tokens and on). Length and
 * positions stay; queries must not see the tokens any more. Pages of the sink window stay: MXA_ERR_ARG.
 */
MXA_API mxa_status mxa_cache_remove(mxa_cache *cache, int64_t b, int64_t first, int64_t n);

/*
 * The page table of a sequence: numbers of pages by token / page_tokens, -1 where there is none. Valid until
 * the cache changes. Setting one shares the pages that it names and gives back those that it had; page
 * numbers are those of a fixed number of pages, whose memory the caller may have filled. Keys before
 * high_first need no high page (the sink window aside).
 */
typedef struct mxa_cache_table {
    int64_t length, high_first;
    int64_t n_pages;
    const int32_t *pages[MXA_PAGE_KINDS];
} mxa_cache_table;

MXA_API mxa_status mxa_cache_get_table(const mxa_cache *cache, int64_t b, mxa_cache_table *table);
MXA_API mxa_status mxa_cache_set_table(mxa_cache *cache, int64_t b, const mxa_cache_table *table);

/*
 * Memory of a page; NULL if there is no such page. In a device's page, codes and scales of a part may lie in
 * another order than in the CPU's (docs/cache.md).
 */
MXA_API void *mxa_cache_page(const mxa_cache *cache, int kind, int32_t page);

/*
 * One safetensors file, complete or not there at all: it is written beside path and renamed. Loading checks
 * the checksum and every size; opts NULL: as saved, pages allocated as needed; else shapes, recipe, rewind
 * and page_tokens must be those of the file. A given mean, and g_v, are in the file: in opts they are the
 * same or NULL.
 * MXA_ERR_FILE the system's reason, or what in the file is not as it was written.
 */
MXA_API mxa_status mxa_cache_save(const mxa_cache *cache, const char *path);
MXA_API mxa_status mxa_cache_load(const char *path, const mxa_cache_opts *opts, mxa_cache **cache);

/*
 * The cudaStream_t on which calls on a device's cache queue their work from now on; NULL, as at first: the
 * default stream. What is queued on the one before is the caller's to wait for. MXA_ERR_ARG a CPU's cache.
 */
MXA_API mxa_status mxa_cache_set_stream(mxa_cache *cache, void *stream);

/*
 * Book counts[b] tokens more of each sequence of a device's cache: pages are taken, lengths grow, and rows
 * are left to a captured append. An append and an attend that are captured into a CUDA graph book nothing;
 * each launch of the graph stores its rows behind those that the device has, and attends to as many. So a
 * decode loop is: advance, then launch; the graph is captured after the first advance (docs/cache.md).
 * MXA_ERR_ARG a CPU's cache, counts, or a stream that is being captured, on which truncate, fork, reorder and
 * set_table are refused too; MXA_ERR_MEMORY: the cache is as it was.
 */
MXA_API mxa_status mxa_cache_advance(mxa_cache *cache, const int64_t *counts);

/*
 * Tokens of another engine's cache, as rows of ggml blocks (every layout of mxa_foreign but GPT_OSS):
 * [n][heads_kv][dim / block], K and V each in a layout of its own.
 */
typedef struct mxa_foreign_rows {
    mxa_foreign layout;
    void *data; /* only read by an import */
    int64_t bytes;
} mxa_foreign_rows;

/*
 * Append n tokens to sequence b, or write those of tokens [first, first + n). Low rows that have the format
 * of the layout (MXFP4, NVFP4), and are neither smoothed nor rotated, go over as they are: the same codes and
 * scales. All else goes by values: an import decodes, and appends what it finds as mxa_cache_append would; an
 * export takes the high row of a token where one is held, else its low row, turned back and with its mean,
 * and quantises it by the format's defaults (q8_0 as ggml does it).
 * MXA_ERR_ARG, MXA_ERR_SHAPE the arguments; MXA_ERR_LAYOUT a layout that is none of ggml's, or head_dim or
 * head_dim_v not a multiple of its block; MXA_ERR_ARG a token whose page was removed; MXA_ERR_MEMORY;
 * MXA_ERR_UNSUPPORTED a device's cache.
 */
MXA_API mxa_status mxa_cache_import_rows(mxa_cache *cache, int64_t b, int64_t n, const mxa_foreign_rows *k,
                                         const mxa_foreign_rows *v);
MXA_API mxa_status mxa_cache_export_rows(const mxa_cache *cache, int64_t b, int64_t first, int64_t n,
                                         const mxa_foreign_rows *k, const mxa_foreign_rows *v);

/* A vLLM NVFP4 page as in mxa_import_vllm_page, and the factors that its K and V have besides. */
typedef struct mxa_vllm_page {
    uint8_t *data;
    int64_t bytes, tokens; /* tokens: those that it has room for */
    float g_k, g_v;        /* decode multipliers: mxa_import_multipliers inverts the other kind */
} mxa_vllm_page;

/*
 * The same for n tokens, at most page->tokens, at the beginning of a page; an export fills its rest with
 * zeros. Low rows go over as they are where they are NVFP4, neither smoothed nor rotated, and have the page's
 * factor: an import gives it to them, but rows at level NONE have 1. MXA_ERR_LAYOUT unless tokens % 4 = 0 and
 * head_dim = head_dim_v is a multiple of 64; MXA_ERR_SCALE a factor.
 */
MXA_API mxa_status mxa_cache_import_vllm(mxa_cache *cache, int64_t b, int64_t n, const mxa_vllm_page *page);
MXA_API mxa_status mxa_cache_export_vllm(const mxa_cache *cache, int64_t b, int64_t first, int64_t n,
                                         const mxa_vllm_page *page);

/* ------------------------------------------------------------------ what this machine runs */

typedef enum mxa_op {
    MXA_OP_QUANTIZE = 0,
    MXA_OP_DECODE = 1, /* codes to numbers */
    MXA_OP_ATTENTION = 2,
    MXA_OP_CACHE = 3, /* attention of new queries to a cache */
    MXA_OP_COUNT = 4
} mxa_op;

typedef struct mxa_impl_info {
    const char *op;     /* "quantize" */
    const char *name;   /* "avx512" */
    const char *format; /* "mxfp4", or "any" */
    const char *needs;  /* CPU features: "avx2 fma"; "" for none */
    bool available;     /* this machine, as masked by MXA_CPU, has them */
} mxa_impl_info;

/* Entry i of an operation's ordered list, fastest first; false past the end. */
MXA_API bool mxa_impl_at(mxa_op op, int i, mxa_impl_info *info);

/* The CPU features found, "avx2 fma f16c"; what the environment variable MXA_CPU masks is left out. */
MXA_API const char *mxa_cpu_features(void);

/*
 * Why AMX is not among them: the processor lacks it, the operating system does not permit it to this process,
 * MXA_CPU masks it; "" if it is. The process asks for it once, unless it is masked.
 */
MXA_API const char *mxa_cpu_amx_reason(void);

#ifdef __cplusplus
}
#endif
#endif
