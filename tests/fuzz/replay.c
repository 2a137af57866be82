/* Runs a fuzz target over stored inputs: files, or directories of them. The first argument must hold at least one. */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

#include "fuzz.h"

static unsigned one(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) < 0) {
        perror(path);
        exit(1);
    }
    size_t n = (size_t)st.st_size;
    uint8_t *p = malloc(n ? n : 1);
    if (!p || fread(p, 1, n, f) != n) {
        perror(path);
        exit(1);
    }
    fclose(f);
    /* what kills the process is named by the line before */
    fprintf(stderr, "%s\n", path);
    LLVMFuzzerTestOneInput(p, n);
    free(p);
    return 1;
}

static unsigned all(const char *path)
{
    DIR *d = opendir(path);
    if (!d)
        return errno == ENOTDIR ? one(path) : 0;
    unsigned n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char name[4096];
        if (e->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        n += one(name);
    }
    closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    unsigned n = argc > 1 ? all(argv[1]) : 0;
    if (n == 0) {
        fprintf(stderr, "no stored input in %s\n", argc > 1 ? argv[1] : "the arguments");
        return 1;
    }
    for (int i = 2; i < argc; i++)
        n += all(argv[i]);
    printf("%u inputs\n", n);
    return 0;
}
