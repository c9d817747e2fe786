package serve

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"vnic.dev/vnic/internal/broker"
)

func TestMain(m *testing.M) {
	if broker.Is(os.Args) {
		os.Exit(broker.Main())
	}
	if what := os.Getenv(apart); what != "" {
		if err := serveApart(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if path := os.Getenv(survivor); path != "" {
		if err := survive(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if path := os.Getenv(stranger); path != "" {
		os.Exit(knock(path))
	}
	if path := os.Getenv(member); path != "" {
		os.Exit(useGPU(path))
	}
	goleak.VerifyTestMain(m)
}
