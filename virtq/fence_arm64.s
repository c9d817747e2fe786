#include "textflag.h"

// func barrier()
TEXT ·barrier(SB), NOSPLIT, $0-0
	DMB $0xb // ISH
	RET
