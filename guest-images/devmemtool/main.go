package devmemtool

import (
	"context"
	"fmt"
)

// Main runs the tool with the arguments behind its name, and returns its exit status. ctx ends it early.
func Main(ctx context.Context, args []string, std Stdio, open Opener) int {
	fmt.Fprintln(std.Err, "devmem: not there yet")
	return exitFailed
}
