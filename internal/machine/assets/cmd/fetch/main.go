// Command fetch fetches into vnic's cache a QEMU with vfio-user and the guests' kernel, each unless assets.Fetch finds
// it: named by the environment, in PATH (QEMU), or in the cache. `make demo` runs it while Go compiles vnic.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"vnic.dev/vnic/internal/machine/assets"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	r, err := assets.Fetch(ctx, assets.Options{VFIOUser: true})
	stop()
	if err == nil {
		err = r.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
}
