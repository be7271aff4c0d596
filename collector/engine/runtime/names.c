/* ACL's numbers for dtypes and formats, as words (acl_base_rt.h of the wheel). */
#include "fake.h"

static const char *const DTYPES[] = {
    "f32", "f16", "i8",   "i32",  "u8",   "dt5",  "i16",  "u16",  "u32",  "i64",  "u64",
    "f64", "bool", "str", "dt14", "dt15", "c64",  "c128", "dt18", "dt19", "dt20", "dt21",
    "dt22", "dt23", "dt24", "dt25", "dt26", "bf16", "dt28", "i4", "u1", "dt31", "dt32",
    "c32", "hif8", "f8e5m2", "f8e4m3", "e8m0", "f6e3m2", "f6e2m3", "f4e2m1", "f4e1m2"};

void put_dtype(struct text *line, int dtype) {
  int known = dtype >= 0 && dtype < (int)(sizeof DTYPES / sizeof *DTYPES);
  put(line, known ? DTYPES[dtype] : "undefined");
}

void put_format(struct text *line, int format) {
  switch (format) {
    case 0: put(line, "NCHW"); break;
    case 1: put(line, "NHWC"); break;
    case 2: put(line, "ND"); break;
    case 3: put(line, "NC1HWC0"); break;
    case 4: put(line, "FRACTAL_Z"); break;
    case 27: put(line, "NDHWC"); break;
    case 29: put(line, "FRACTAL_NZ"); break;
    case 30: put(line, "NCDHW"); break;
    case 35: put(line, "NC"); break;
    case 47: put(line, "NCL"); break;
    default: put(line, "FORMAT_"), put_int(line, format);
  }
}
