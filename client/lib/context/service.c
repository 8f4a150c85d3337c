/* service.c - is a commd of the whole node meant to run here? Then a rank that does not find it
 * must not start a commd of its own: that one knows no other node, and the ranks of different nodes
 * would wait for each other.
 *
 * A service is meant to run if an administrator has enabled the unit, where systemd runs, or has
 * named nodes in the configuration. Installing the package does neither. Removing the package
 * leaves the link of the unit and the configuration behind. So the link counts only while the
 * unit's file is there, and the configuration only while the program is there. The configuration is
 * read line by line, and only one thing is looked for: an item below "nodes:", or beside it. */
#include "client/lib/context/context.h"

#include <glob.h>
#include <stdio.h>

static bool unit_enabled(const char *root, char *path, size_t size)
{
    char pattern[512];
    glob_t found;
    bool any = false;

    snprintf(pattern, sizeof pattern, "%s/run/systemd/system", root);
    if (access(pattern, F_OK))
        return false;
    snprintf(pattern, sizeof pattern, "%s/etc/systemd/system/*.wants/commd.service", root);
    if (glob(pattern, GLOB_NOSORT, NULL, &found))
        return false;
    for (size_t i = 0; i < found.gl_pathc && !any; i++) {
        any = access(found.gl_pathv[i], F_OK) == 0;
        if (any)
            snprintf(path, size, "%s", found.gl_pathv[i]);
    }
    globfree(&found);
    return any;
}

/* Is there something but blanks, a comment and an empty list? */
static bool says_something(const char *text)
{
    text += strspn(text, " \t\r\n");
    if (*text == '[')
        return text[1 + strspn(text + 1, " \t\r\n")] != ']';
    return *text && *text != '#';
}

static bool names_nodes(const char *path)
{
    _cleanup_(freep) char *line = NULL;
    FILE *file = fopen(path, "re");
    size_t size = 0;
    bool inside = false, found = false;

    while (file && !found && getline(&line, &size, file) > 0) {
        const char *word = line + strspn(line, " ");

        if (!says_something(word))
            continue;
        if (inside)
            found = *word == '-';
        inside = !strncmp(word, "nodes:", 6);
        if (inside)
            found = says_something(word + 6);
    }
    if (file)
        fclose(file);
    return found;
}

bool service_expected(const char *root, char *why, size_t size)
{
    char path[512];

    if (unit_enabled(root, path, sizeof path)) {
        snprintf(why, size, "the service commd is enabled on this node (%s)", path);
        return true;
    }
    snprintf(path, sizeof path, "%s" COMMD_SBINDIR "/commd", root);
    if (access(path, F_OK))
        return false;
    snprintf(path, sizeof path, "%s" COMMD_SYSCONFDIR "/commd/commd.yaml", root);
    if (!names_nodes(path))
        return false;
    snprintf(why, size, "this node is one of a cluster (nodes in %s)", path);
    return true;
}
