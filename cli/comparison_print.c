/* SPDX-License-Identifier: Apache-2.0 */
#include "comparison.h"

#include "cli.h"
#include "json_text.h"
#include "table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Recipes that the sentences below the table put beside each other. */
#define OUR_RECIPE   "dma4"
#define THEIR_RECIPE "mxfp8"

/* After the baseline's name, in JSON and CSV. */
#define BASELINE_SUFFIX "_time_ms"

enum { METRIC_COLUMNS = 6, BASELINE_KEY_BYTES = 16 };

static const comparison_row *find_row(const comparison *c, const char *recipe)
{
    for (size_t i = 0; i < c->count; i++)
        if (strcmp(c->rows[i].recipe, recipe) == 0)
            return &c->rows[i];
    return NULL;
}

static void print_meaning(const comparison *c)
{
    puts("\nrel_l2 is how far a recipe's output is from exact float64 attention on the same numbers (0.01 is "
         "1 %),\n"
         "the mean over heads; k bits is what one number of K takes in low tiles, high the share of high "
         "tiles.");
    const comparison_row *ours = find_row(c, OUR_RECIPE), *theirs = find_row(c, THEIR_RECIPE);
    if (ours == NULL || theirs == NULL)
        return;
    const bool less = ours->total.rel_l2 < theirs->total.rel_l2;
    printf(OUR_RECIPE " stores the keys of its low tiles in %.2f bits and has %s error than " THEIR_RECIPE
                      " with %.2f bits everywhere%s\n",
           ours->k_bits, less ? "less" : "more", theirs->k_bits,
           less ? ":\nits nearest and first keys stay in 16 bits, and the rotation spreads outliers." : ".");
}

static void add_metrics(table *t, const metrics *m)
{
    table_add(t, "%.5f", m->rel_l2);
    table_add(t, "%.4f", m->rel_l2_worst_head);
    table_add(t, "%.4f", m->worst_row);
    table_add(t, "%.6f", m->cosine);
    table_add(t, "%.1f", m->psnr_db);
    table_add(t, "%.1e", m->lse_max_abs);
}

static void add_heads(table *t, const comparison *c, const comparison_row *row, size_t columns)
{
    for (int64_t h = 0; h < c->matrices; h++) {
        const metrics m = metrics_of(&row->heads[h], 1);
        if (c->matrices == c->heads)
            table_add(t, "  head %" PRId64, h);
        else
            table_add(t, "  batch %" PRId64 " head %" PRId64, h / c->heads, h % c->heads);
        add_metrics(t, &m);
        for (size_t i = 1 + METRIC_COLUMNS; i < columns; i++)
            table_add(t, "%s", "");
    }
}

bool comparison_print_table(const comparison *c, bool per_head)
{
    static const char *const titles[] = { "recipe",  "rel_l2",  "worst head", "worst row", "cosine",
                                          "psnr dB", "lse err", "high",       "k bits",    "ms" };
    const size_t named = sizeof titles / sizeof titles[0], columns = named + 1;
    table t;
    table_start(&t, columns);
    for (size_t i = 0; i < named; i++)
        table_add(&t, "%s", titles[i]);
    table_add(&t, "x %s", c->baseline);
    for (size_t i = 0; i < c->count; i++) {
        const comparison_row *row = &c->rows[i];
        table_add(&t, "%s", row->recipe);
        add_metrics(&t, &row->total);
        table_add(&t, "%.1f %%", 100 * row->high_share);
        table_add(&t, "%.2f", row->k_bits);
        table_add(&t, "%.*f", row->time_ms < 1 ? 3 : 1, row->time_ms);
        table_add(&t, "%.2f", c->baseline_ms / row->time_ms);
        if (per_head)
            add_heads(&t, c, row, columns);
    }
    if (!table_finish(&t))
        return false;
    printf("%" PRId64 " heads of q, %" PRId64 " of k; %" PRId64 " queries, %" PRId64 " keys, dim %" PRId64
           ".\n",
           c->heads, c->heads_kv, c->q_len, c->kv_len, c->dim);
    printf("x %s: how many times as fast as the same attention with %s operands, %.*f ms.\n", c->baseline,
           c->baseline, c->baseline_ms < 1 ? 3 : 1, c->baseline_ms);
    print_meaning(c);
    return true;
}

static json_t *row_json(const comparison *c, const comparison_row *row, const metrics *m)
{
    char baseline[BASELINE_KEY_BYTES];
    snprintf(baseline, sizeof baseline, "%s" BASELINE_SUFFIX, c->baseline);
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "recipe", row->recipe,
                     "rel_l2", json_number(m->rel_l2), "rel_l2_worst_head", json_number(m->rel_l2_worst_head),
                     "worst_row", json_number(m->worst_row), "cosine", json_number(m->cosine), "psnr_db",
                     json_number(m->psnr_db), "lse_max_abs", json_number(m->lse_max_abs), "high_share",
                     json_number(row->high_share), "k_bits", json_number(row->k_bits), "time_ms",
                     json_number(row->time_ms), baseline, json_number(c->baseline_ms));
}

bool comparison_print_json(const comparison *c, bool per_head)
{
    json_t *list = json_array();
    int failed = list == NULL;
    for (size_t i = 0; i < c->count; i++) {
        const comparison_row *row = &c->rows[i];
        failed |= json_array_append_new(list, row_json(c, row, &row->total));
        for (int64_t h = 0; per_head && h < c->matrices; h++) {
            const metrics m = metrics_of(&row->heads[h], 1);
            json_t *object = row_json(c, row, &m);
            failed |= json_object_set_new(object, "batch", json_integer(h / c->heads));
            failed |= json_object_set_new(object, "head", json_integer(h % c->heads));
            failed |= json_array_append_new(list, object);
        }
    }
    if (failed) {
        json_decref(list);
        list = NULL;
    }
    return json_print(list);
}

static void print_csv_row(const comparison *c, const comparison_row *row, const metrics *m)
{
    printf(strchr(row->recipe, ',') ? "\"%s\"" : "%s", row->recipe);
    const double values[] = {
        m->rel_l2,      m->rel_l2_worst_head, m->worst_row, m->cosine,    m->psnr_db,
        m->lse_max_abs, row->high_share,      row->k_bits,  row->time_ms, c->baseline_ms
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        printf(",%.9g", values[i]);
}

bool comparison_print_csv(const comparison *c, bool per_head)
{
    printf("recipe,rel_l2,rel_l2_worst_head,worst_row,cosine,psnr_db,lse_max_abs,high_share,k_bits,time_ms,"
           "%s" BASELINE_SUFFIX "%s\n",
           c->baseline, per_head ? ",batch,head" : "");
    for (size_t i = 0; i < c->count; i++) {
        const comparison_row *row = &c->rows[i];
        print_csv_row(c, row, &row->total);
        puts(per_head ? ",," : "");
        for (int64_t h = 0; per_head && h < c->matrices; h++) {
            const metrics m = metrics_of(&row->heads[h], 1);
            print_csv_row(c, row, &m);
            printf(",%" PRId64 ",%" PRId64 "\n", h / c->heads, h % c->heads);
        }
    }
    return true;
}
