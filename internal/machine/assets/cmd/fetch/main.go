// Command fetch fetches QEMU and the guests' kernel, if they are missing, into vnic's cache (assets.Fetch). `make
// demo` runs it while Go compiles vnic.
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
