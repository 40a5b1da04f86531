/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations that fail: the linker sends the library's calls of malloc and its kin to failing_memory.c
 * (-Wl,--wrap), so tests with it link the static library.
 */
#ifndef FAILING_MEMORY_H
#define FAILING_MEMORY_H

/* Counts down while a call of the library runs; the allocation that finds 0 fails. Below 0: none does. */
extern long api_allocations_left;

#endif
