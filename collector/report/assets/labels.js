// The Chinese of each label; a label without an entry is shown in English.
"use strict";

const chinese = {};
