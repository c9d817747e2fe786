package proc

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv(envSweeper) != "" {
		sweeper()
	}
	if os.Getenv(envParent) != "" {
		parent()
	}
	os.Exit(m.Run())
}
