#include <tailrace/change.h>

const char *tr_op_name(uint8_t op)
{
    switch (op) {
#define X(name, num, text)                                                                                             \
    case num:                                                                                                          \
        return text;
        TR_OP_LIST(X)
#undef X
    default:
        return "unknown";
    }
}
