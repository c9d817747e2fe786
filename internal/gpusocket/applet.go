package gpusocket

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
)

// Name is the applet's name.
const Name = "gpusocket"

const help = `  gpusocket eth0 &      then run a program that asks at ` + Path + `

Gives programs of this guest memory of the GPU beside a gVNIC of vnic's, as dma-bufs for Linux's own devmem TCP. ` +
	`A program connects
to the socket (SOCK_SEQPACKET), sends a size in bytes (u64), and gets an errno (u32) and a dma-buf (SCM_RIGHTS); ` +
	`the memory is its own
until it closes the connection. It needs root, /proc, /sys and /dev/udmabuf, and serves until it is ended.
`

// Applet runs the tool with the arguments after its name, until SIGINT or SIGTERM, and returns its exit status.
func Applet(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return tool(ctx, args, os.Stdout, os.Stderr)
}

func tool(ctx context.Context, args []string, out, errs io.Writer) int {
	if len(args) == 1 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help") {
		_, _ = io.WriteString(out, help)
		return 0
	}
	if len(args) != 1 {
		_, _ = fmt.Fprintf(errs, "%s: name a network interface, as eth0: see '%s -h'\n", Name, Name)
		return 2
	}
	if _, err := net.InterfaceByName(args[0]); err != nil {
		_, _ = fmt.Fprintf(errs, "%s: %s: %v\n", Name, args[0], err)
		return 1
	}
	if err := Serve(ctx, args[0]); err != nil {
		_, _ = fmt.Fprintf(errs, "%s: %v\n", Name, err)
		return 1
	}
	return 0
}
