/* SPDX-License-Identifier: Apache-2.0 */
/* One function for each list of kernels; tests/kernel/check_<op>.c defines it. */
#ifndef CHECK_LISTS_H
#define CHECK_LISTS_H

void check_quantize(void);
void check_decode(void);
void check_prepare(void);
void check_attention(void);
void check_cache(void);
void check_attention_cuda(void);

#endif
