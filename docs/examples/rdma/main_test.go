package main

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// The program reports that all bytes went through device memory.
func TestProgram(t *testing.T) {
	testkit.LeavesNothing(t)
	r, w, err := os.Pipe()
	testkit.OK(t, err)
	stdout := os.Stdout
	os.Stdout = w
	err = run(context.Background())
	os.Stdout = stdout
	testkit.OK(t, w.Close())
	output := string(testkit.Must(io.ReadAll(r))(t))
	testkit.OK(t, r.Close())
	testkit.OK(t, err)
	const want = `put 16777216 bytes by 16 work requests, got 16777216 by 16; path MTU 4096
payload in device memory 33554432, in host memory 0
`
	if output != want {
		t.Error(strings.TrimSpace(output))
	}
}
