/* SPDX-License-Identifier: Apache-2.0 */
/* Peaks of a processor: loops of one multiply instruction on registers, and memory far from the caches. */
#ifndef PEAK_H
#define PEAK_H

#include <stdint.h>

typedef struct peak_loop {
    const char *level; /* as in MXA_CPU */
    const char *use;   /* the products of attention that it can compute: "f32", "half" (16 bits) or "int" */
    const char *instruction;
    uint32_t needs; /* MXA_CPU_... */
    double ops;     /* multiplications and additions of a step */
    void (*run)(int64_t steps);
} peak_loop;

/* Terminated by an entry without level. */
extern const peak_loop peak_loops[];

/* Bytes read a second, and bytes copied a second (each read and written once), by this many threads. */
double peak_read(int threads);
double peak_copy(int threads);

double peak_seconds(void);

#endif
