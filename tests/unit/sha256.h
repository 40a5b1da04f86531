/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4) of a whole message, in lower-case hex. */
#ifndef MXA_TESTS_SHA256_H
#define MXA_TESTS_SHA256_H

#include <stddef.h>
#include <stdint.h>

void sha256_hex(const uint8_t *message, size_t n, char hex[65]);

#endif
