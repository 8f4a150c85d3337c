/* env.h - variables of the environment, changed in a process whose other threads read them: those
 * of the fake CUDA driver. setenv() frees or moves the list that such a thread is reading. */
#ifndef TESTS_LIB_ENV_H
#define TESTS_LIB_ENV_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* @value NULL: @name is taken away. Each call makes a new list, none is freed. */
static inline void env_set(const char *name, const char *value)
{
    static struct list {
        struct list *before; /* so that LeakSanitizer sees all */
        char *assignment;
        char *vars[];
    } *last;
    size_t len = strlen(name), all = 0, n = 0;
    struct list *list;

    while (environ[all])
        all++;
    list = calloc(1, sizeof *list + (all + 2) * sizeof list->vars[0]);
    if (!list || (value && asprintf(&list->assignment, "%s=%s", name, value) < 0))
        abort();
    for (size_t i = 0; i < all; i++)
        if (strncmp(environ[i], name, len) || environ[i][len] != '=')
            list->vars[n++] = environ[i];
    list->vars[n] = list->assignment;
    list->before = last;
    last = list;
    __atomic_store_n(&environ, list->vars, __ATOMIC_RELEASE);
}

#endif
