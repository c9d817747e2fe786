package proc

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv(envSweeper) != "" {
		sweeper()
	}
	os.Exit(m.Run())
}
