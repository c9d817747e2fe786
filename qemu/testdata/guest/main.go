// Command guest is a guest of qemu's tests: the frame of every guest, and an operation that ends it in several ways.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/guest-images/boot"
)

func main() {
	agent.Register("crash", opCrash)
	os.Exit(boot.Main(os.Args))
}

func opCrash(_ context.Context, args json.RawMessage) (any, error) {
	var how string
	if err := json.Unmarshal(args, &how); err != nil {
		return nil, err
	}
	switch how {
	case "panic": // the agent
		go panic("asked to crash")
	case "kernel":
		return nil, os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
	case "reset":
		return nil, unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	default:
		return nil, fmt.Errorf("crash how? %q", how)
	}
	select {}
}
