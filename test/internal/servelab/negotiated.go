package servelab

import (
	"context"
	"os"
	"strings"
)

// negotiated gives what the driver of eth0 and its device have negotiated: a 0 or a 1 for each bit, that of bit 0
// first.
func negotiated(context.Context, *args) (any, error) {
	b, err := os.ReadFile("/sys/class/net/" + iface + "/device/features")
	return struct{ Features string }{strings.TrimSpace(string(b))}, err
}
