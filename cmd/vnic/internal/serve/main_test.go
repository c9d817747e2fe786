package serve

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
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
	goleak.VerifyTestMain(m)
}
