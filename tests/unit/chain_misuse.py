"""Wrong chains do not compile, and one line of what the compiler says tells why; the example in chain.h does compile. Usage: chain_misuse.py INCLUDE_DIR COMPILER ..."""
import re
import subprocess
import sys

HEAD = """
#include <tailrace/chain.h>
struct s { int n; };
struct a { int n; };
struct b { int n; };
TR_EMITTER(as, struct a);
TR_EMITTER(bs, struct b);
static inline int decode(struct s *s, const struct tr_payload *p, struct as_emitter *out, struct tr_err *err)
{ struct a r = {(int)p->value.n + s->n}; (void)err; return as_emit(out, &r); }
static inline int split(struct s *s, const struct a *r, struct bs_emitter *out, struct tr_err *err)
{ struct b made = {r->n + s->n}; (void)err; return bs_emit(out, &made); }
static inline bool keep_a(struct s *s, const struct a *r) { return s->n < r->n; }
static inline bool keep_b(struct s *s, const struct b *r) { return s->n < r->n; }
static inline int keep_int(struct s *s, const struct a *r) { return s->n < r->n; }
static inline void to_b(struct s *s, const struct a *r, struct b *ret) { ret->n = r->n + s->n; }
static inline void see_b(struct s *s, const struct b *r) { s->n += r->n; }
static inline void drop_b(struct s *s, struct b *r) { s->n += r->n; }
static inline int try_b(struct s *s, const struct a *r, struct b *ret, struct tr_err *err) { (void)err; ret->n = r->n + s->n; return 0; }
static inline struct tr_slice key_a(struct s *s, const struct a *r) { (void)s; return tr_slice_of(r, sizeof *r); }
static inline uint32_t route_a(struct s *s, const struct a *r) { return (uint32_t)(s->n + r->n); }
static inline int row_a(struct s *s, const struct a *r, struct tr_chain_row *row, struct tr_err *err)
{ (void)s; (void)err; tr_chain_row_i64(row, 0, r->n); return 0; }
static inline int row_b(struct s *s, const struct b *r, struct tr_chain_row *row, struct tr_err *err)
{ (void)s; (void)err; tr_chain_row_i64(row, 0, r->n); return 0; }
int use(const struct tr_chain_def *d, struct s *s, const struct tr_chain_ops **ops, void **ret, struct tr_err *err);
int use(const struct tr_chain_def *d, struct s *s, const struct tr_chain_ops **ops, void **ret, struct tr_err *err) { return c_new(d, s, ops, ret, err); }
"""
D, END = "TR_DECODE(decode, as)", "TR_DISCARD()"
NINE = ", ".join(["TR_ROWS(row_a)"] * 9)

# What is put into TR_CHAIN, and what a line of the compiler's output must hold; None: it is right, and compiles.
CASES = [
    ([D, END], None),
    ([D, "TR_FILTER(keep_a)", "TR_KEY(key_a)", "TR_ROUTE(route_a, TR_ROWS(row_a), TR_ROWS(row_a))"], None),
    ([D, "TR_SKIP(TR_TRY_MAP(try_b, struct b))", "TR_OWN(drop_b)", "TR_FILTER(keep_b)", "TR_TO(TR_ROWS(row_b))"], None),
    ([D, "TR_FLAT_MAP(split, bs)", "TR_INSPECT(see_b)", END], None),
    ([D] + ["TR_FILTER(keep_a)"] * 14 + [END], None),
    ([D] + ["TR_FILTER(keep_a)"] * 15 + [END], "c: a chain has at most 16 stages"),
    ([D, "TR_FILTER(keep_b)", END], "c: keep_b must be bool (S *, const T *), T what the stage before makes"),
    ([D, "TR_FILTER(keep_int)", END], "c: keep_int must be bool (S *, const T *)"),
    ([D, "TR_MAP(to_b, struct a)", END], "c: to_b must be void (S *, const T *, struct a *)"),
    ([D, "TR_MAP(to_b, struct b)", "TR_FILTER(keep_a)", END], "c: keep_a must be bool (S *, const T *)"),
    ([D, "TR_TRY_MAP(to_b, struct b)", END], "c: to_b must be int (S *, const T *, struct b *, struct tr_err *)"),
    ([D, "TR_FLAT_MAP(split, as)", END], "c: split must be int (S *, const T *, struct as_emitter *, struct tr_err *)"),
    ([D, "TR_INSPECT(see_b)", END], "c: see_b must be void (S *, const T *)"),
    ([D, "TR_KEY(keep_a)", END], "c: keep_a must be struct tr_slice (S *, const T *)"),
    ([D, "TR_ROUTE(keep_a, TR_ROWS(row_a))"], "c: keep_a must be uint32_t (S *, const T *)"),
    ([D, "TR_TO(TR_ROWS(row_b))"], "c: row_b must be int (S *, const T *, struct tr_chain_row *, struct tr_err *)"),
    ([D, "TR_TO(TR_ENCODED(row_a))"], "c: row_a must be int (S *, const T *, struct tr_buf *, struct tr_err *)"),
    ([D, "TR_TO(" + NINE + ")"], "c: a chain has at most 8 outputs"),
    (["TR_DECODE(decode, bs)", END], "c: decode must be int (S *, const struct tr_payload *, struct bs_emitter *, struct tr_err *)"),
    (["TR_FILTER(keep_a)", END], "c: TR_DECODE or TR_DESERIALIZE comes first, and only there"),
    ([D, "TR_DESERIALIZE(struct b)", END], "c: TR_DECODE or TR_DESERIALIZE comes first, and only there"),
    ([D, "TR_FILTER(keep_a)"], "c: TR_TO, TR_ROUTE, TR_ROUTE_BY_KEY or TR_DISCARD comes last, and only there"),
    ([D, "TR_TO(TR_ROWS(row_a))", END], "c: TR_TO, TR_ROUTE, TR_ROUTE_BY_KEY or TR_DISCARD comes last, and only there"),
    ([D, "TR_SKIP(TR_FILTER(keep_a))", END], "c: TR_SKIP or TR_FAIL around tr_filter keep_a, which has no policy"),
    (["TR_SKIP(TR_DESERIALIZE(struct a))", END], "c: TR_SKIP or TR_FAIL around tr_deserialize deserializer, which has no policy"),
    ([D, "TR_MAP(to_b, struct b)", "TR_INSPECT(see_b)", "TR_OWN(drop_b)", END], "c: TR_OWN(drop_b) comes directly behind TR_MAP or TR_TRY_MAP"),
]


# What the example leaves to the reader.
EXAMPLE = """
#include <tailrace/chain.h>
struct order;
bool order_parse(struct tr_slice text, struct order *ret);
int64_t convert(double rate, int64_t cents);
{}
int chain_new(struct tr_out **outs, uint32_t n_outs, struct tr_schema *schema, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err);
int chain_new(struct tr_out **outs, uint32_t n_outs, struct tr_schema *schema, const struct tr_chain_ops **ret_ops, void **ret_chain, struct tr_err *err)
{{
    static struct shop shop = {{1.1}};
{}
}}
"""


def example(include):
    """The indented lines of the opening comment: stages, and behind the last comment of theirs what stands in a function."""
    with open(include + "/tailrace/chain.h", encoding="utf-8") as file:
        opening = file.read().split(" * The stages.")[0]
    code = "\n".join(line[3:] for line in opening.splitlines() if line.startswith(" *     ") or line == " *")
    stages, inside = code[code.index("struct shop"):].split("// in the pipeline's chain_new:")
    return EXAMPLE.format(stages, inside)


def compiled(compiler, include, source, *options):
    return subprocess.run(compiler + ["-std=c17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror", "-O0", "-fsyntax-only", "-I" + include] + list(options) + ["-x", "c", "-"],
                          input=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main():
    include, compiler = sys.argv[1], sys.argv[2:]
    bad = 0
    for stages, wanted in CASES:
        head = HEAD if re.search("bs|split", " ".join(stages)) else re.sub(r"TR_EMITTER\(bs.*\n|static inline int split.*\n.*\n", "", HEAD)
        source = head.replace("int use(", "TR_CHAIN(c, struct s, " + ", ".join(stages) + ");\nint use(", 1)
        got = compiled(compiler, include, source)
        if wanted is None:
            ok = got.returncode == 0
        else:
            ok = got.returncode != 0 and any(re.search("error: static.assert", line) and wanted in line.replace('\\"', '"') for line in got.stdout.splitlines())
        if not ok:
            bad += 1
            print("TR_CHAIN(c, struct s, {}): wanted {!r}, got\n{}".format(", ".join(stages), wanted, "\n".join(got.stdout.splitlines()[:12])))
    got = compiled(compiler, include, example(include), "-Wno-unused-parameter")
    if got.returncode != 0:
        bad += 1
        print("the example of chain.h:\n" + got.stdout)
    print("{} chains, {} not as they should be".format(len(CASES) + 1, bad))
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
