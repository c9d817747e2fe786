package inuse

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// asked names the environment variable with the device that a child process claims.
const asked = "VNIC_INUSE_TEST_DEVICE"

func TestMain(m *testing.M) {
	if device := os.Getenv(asked); device != "" {
		if _, err := Claim(device); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("has it")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Invariant: inuse: A device is one program's: a second one's error names the first, if the kernel
// reports its process; when the first has ended, in any way, the second gets the device.
func TestSecondProgramIsToldWhoHasTheDevice(t *testing.T) {
	for _, device := range []string{t.TempDir() + "/eth0", t.TempDir() + "/" + strings.Repeat("x", 200)} {
		first := exec.Command(os.Args[0])
		first.Env = append(os.Environ(), asked+"="+device)
		out, err := first.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		in, err := first.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = in.Close() }()
		if err := first.Start(); err != nil {
			t.Fatal(err)
		}
		line, _ := bufio.NewReader(out).ReadString('\n')
		if line != "has it\n" {
			t.Fatalf("%q", line)
		}
		_, err = Claim(device)
		want := fmt.Sprintf("in use: process %d (inuse.test) has it", first.Process.Pid)
		if !errors.Is(err, syscall.EBUSY) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, and not: %s", err, want)
		}
		_ = first.Process.Kill()
		_ = first.Wait()
		c, err := Claim(device)
		if err != nil {
			t.Fatalf("after its end: %v", err)
		}
		if _, err := Claim(device); err == nil || !strings.Contains(err.Error(), "this process") {
			t.Errorf("ours, once more: %v", err)
		}
		other, err := Claim(device + "1")
		if err != nil {
			t.Errorf("another device: %v", err)
		}
		for range 20 { // more than the socket's backlog
			_, err = Claim(device)
		}
		if !errors.Is(err, syscall.EBUSY) {
			t.Errorf("asked by many: %v", err)
		}
		if err := errors.Join(c.Close(), other.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestNamesOfAnyLength(t *testing.T) {
	for n := 80; n < 120; n++ {
		name := t.Name() + strings.Repeat("x", n)
		c, err := Claim(name)
		if err != nil {
			t.Fatalf("%d bytes: %v", len(name), err)
		}
		if _, err := Claim(name); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%d bytes: a second claim: %v", len(name), err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestShare(t *testing.T) {
	first, err := Share(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	second, err := Share(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Claim(t.Name()); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("a claim while it is shared: %v", err)
		}
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := Claim(t.Name())
	if err != nil {
		t.Fatalf("a claim when nobody has it: %v", err)
	}
	if _, err := Share(t.Name()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a share of what is claimed: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestClaimWithoutASocketFails(t *testing.T) {
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old) }()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	if _, err := Claim(t.Name()); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("%v, want EMFILE", err)
	}
}
