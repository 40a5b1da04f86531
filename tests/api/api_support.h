/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the public interface share: guarded memory, tensors read and written as doubles, and a
 * float64 attention written from the formulas of docs/numerics.md. Nothing here includes a header of the
 * library but the public one.
 */
#ifndef API_SUPPORT_H
#define API_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <mxattn/mxattn.h>

/* One entry of a cmocka list. */
#define API_TEST(test) cmocka_unit_test_teardown(test, api_teardown)

/* ------------------------------------------------------------------ memory */

/*
 * bytes of memory, 64-byte aligned, filled with 0xFF (NaN in every float type) and with guard bytes on both
 * sides. It lives until api_teardown, which checks the guards.
 */
void *api_bytes(size_t bytes);
float *api_floats(size_t count);

/* The block that starts at data is as api_bytes gave it: nothing was written. */
void api_untouched(const void *data);
void api_fill_again(void *data);

int api_teardown(void **state);

/* ------------------------------------------------------------------ random numbers and tensors */

double api_uniform(uint64_t *seed); /* [0, 1) */
double api_normal(uint64_t *seed);
int64_t api_pick(uint64_t *seed, int64_t lowest, int64_t highest);

/* A contiguous tensor in memory of api_bytes: NaN everywhere. */
mxa_tensor api_tensor(mxa_dtype dtype, int64_t batch, int64_t heads, int64_t seq, int64_t dim);
double api_get(const mxa_tensor *t, int64_t b, int64_t h, int64_t s, int64_t d);
void api_set(const mxa_tensor *t, int64_t b, int64_t h, int64_t s, int64_t d,
             double value); /* nearest even */

void api_set_all(const mxa_tensor *t, double value);
void api_set_row(const mxa_tensor *t, int64_t b, int64_t h, int64_t s, double value);
void api_set_normal(const mxa_tensor *t, uint64_t seed);
void api_copy(const mxa_tensor *to, const mxa_tensor *from); /* of one shape */

/* Rows [first, first + count) of t, as a view. */
mxa_tensor api_rows(const mxa_tensor *t, int64_t first, int64_t count);

/* Both hold the same bits, a zero's sign included. */
void api_same_bits(const mxa_tensor *a, const mxa_tensor *b);

/* ------------------------------------------------------------------ errors */

/* got is want, and the sentence names the argument (a whole word) and, unless NULL, the value. */
void api_refused(mxa_status got, mxa_status want, const char *argument, const char *value);
void api_ok(mxa_status got);

/* ------------------------------------------------------------------ quantised tensors */

/* Buffers of just the sizes that mxa_packed_sizes gives, in memory of api_bytes. */
typedef struct api_packed {
    mxa_packed_size size;
    mxa_packed data;
} api_packed;

api_packed api_packed_new(mxa_format format, const mxa_quant_opts *opts, const int64_t shape[4]);
void api_packed_same(const api_packed *a, const api_packed *b);
void api_packed_untouched(const api_packed *p);

/* Every format that holds numbers, the plain ones first; and one tensor quantised into new buffers. */
enum { API_FORMATS = 12, API_PLAIN = 3 };
extern const mxa_format api_formats[API_FORMATS];
mxa_quant_opts api_opts(void);
api_packed api_quantize(const mxa_tensor *x, mxa_format format, const mxa_quant_opts *opts);
mxa_tensor api_dequantize(const api_packed *p, mxa_format format, const mxa_quant_opts *opts, mxa_dtype dtype,
                          const int64_t shape[4]);

/* ------------------------------------------------------------------ attention */

/* The recipes by name, ended by NULL. */
extern const char *const api_recipes[];

typedef struct api_call {
    mxa_problem problem;
    const char *recipe;
    mxa_tensor q, k, v, out;
    float *lse;
    const float *sinks, *mean, *g_q, *g_k;
} api_call;

/*
 * A problem with the defaults, tensors of NaN and an LSE. The recipe is "exact"; types and masks may be
 * changed before api_tensors_of makes the tensors again.
 */
api_call api_call_new(int64_t batch, int64_t heads, int64_t heads_kv, int64_t q_len, int64_t kv_len,
                      int64_t head_dim);
void api_tensors_of(api_call *call);
void api_random_inputs(api_call *call, uint64_t seed);

/*
 * Rows with one element other than zero, a power of two, on top of a bias that all keys share (0 without
 * smooth-K); the first 128 of more keys are the bias alone. Rotated or not, smoothed or not, every format
 * holds them without loss if head_dim is a power of 4, so a recipe differs from exact attention only by the
 * rounding of its products.
 */
void api_lossless_inputs(api_call *call, double bias, uint64_t seed);

/* Plan, workspace of just the size asked for, call. The second asserts success. */
mxa_status api_try(const api_call *call);
void api_attend(const api_call *call);

/* ------------------------------------------------------------------ the oracle */

/* Rows count [batch][heads][q_len] of the tensors passed. */
typedef struct api_expected {
    int64_t rows, dim_v;
    double *o;         /* [rows][dim_v] */
    double *o_abs;     /* sum of P |V| */
    double *v_abs;     /* [rows][dim_v] largest visible |V| */
    double *lse;       /* [rows] */
    double *dot_abs;   /* [rows] largest |scale| sum |q k| of a visible key */
    double *logit_abs; /* [rows] largest |logit| of a visible key, before softcap */
    int64_t *visible;  /* [rows] */
} api_expected;

api_expected api_oracle(const api_call *call);

/* Errors that a recipe may make, relative unless it says otherwise; 0 throughout for exact. */
typedef struct api_tolerance {
    double dot;   /* of a dot product, relative to sum |q k| */
    double logit; /* of a logit, relative to the largest */
    double exp2;  /* of a power of two */
    double p;     /* of a probability that is rounded to 16 bits */
    double p_abs; /* of a probability, absolute */
    double sum;   /* of the sums over keys, for each key */
} api_tolerance;

extern const api_tolerance API_EXACT;
api_tolerance api_tolerance_of(const api_call *call);

/* Non-finite patterns match, then values do within the bounds of docs/numerics.md, "Attention tolerance". */
void api_check(const api_call *call, const api_expected *want, api_tolerance tolerance);

/* The three steps of most tests. */
void api_attend_and_check(const api_call *call);

#endif
