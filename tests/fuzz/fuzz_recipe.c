/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a recipe: it is refused with a sentence, or its full text gives the same recipe again. */
#include <mxattn/mxattn.h>

#include <stdlib.h>
#include <string.h>

static void require(bool truth)
{
    if (!truth)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (text == NULL)
        abort();
    memcpy(text, data, size);
    text[size] = '\0';

    mxa_recipe recipe, again;
    char first[1024], second[1024];
    if (mxa_recipe_parse(text, &recipe) != MXA_OK) {
        require(mxa_error_text()[0] != '\0');
    } else {
        require(mxa_recipe_text(&recipe, first, sizeof first) < sizeof first);
        require(mxa_recipe_parse(first, &again) == MXA_OK);
        require(mxa_recipe_text(&again, second, sizeof second) < sizeof second);
        require(strcmp(first, second) == 0);
    }
    free(text);
    return 0;
}
