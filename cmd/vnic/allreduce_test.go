package main

import (
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Some flags of nccl-tests set the same option in vnic; for others, or their values, the error names what vnic accepts.
func TestFlagsOfNCCLTests(t *testing.T) {
	for args, want := range map[string]string{
		"-g 8": "guests=8", "--ngpus 3": "guests=3", "-o sum": "op=all_reduce", "-o broadcast": "op=broadcast",
		"-r 1":     "root=1",
		"-d float": "dtype=float", "--datatype bfloat16": "dtype=bfloat16", "--warmup_iters 2": "warmup-iters=2",
		"-c=0": "check=false", "-c 0": "-c 0: write -c", "more": "unknown command",
		"-d half": "GPUs here add up bfloat16, float, int32", "-o prod": "GPUs here add up: sum, or one of all_reduce, ",
		"-t 2": "of nccl-tests' flags there are -g (--guests: ", "--agg_iters 2": "flags there are -g (--guests: ",
	} {
		c := allreduceCommand()
		err := c.ParseFlags(strings.Fields(args))
		if err == nil {
			err = c.ValidateArgs(c.Flags().Args())
		}
		name, value, found := strings.Cut(want, "=")
		switch {
		case !found:
			testkit.ErrorSays(t, c.FlagErrorFunc()(c, err), want)
		case err != nil || c.Flags().Lookup(name).Value.String() != value:
			t.Errorf("%s: %v, and not %s", args, err, want)
		}
	}
}
