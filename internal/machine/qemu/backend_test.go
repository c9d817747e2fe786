package qemu

import (
	"io"
	"net"
	"os"
	"os/exec"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// envCaller makes this program connect to the socket that the variable names, after a byte or the end of standard
// input, and print what it reads.
const envCaller = "VNIC_TEST_CALLER"

func caller() {
	_, _ = os.Stdin.Read(make([]byte, 1))
	c, err := net.Dial("unix", os.Getenv(envCaller))
	if err != nil {
		panic(err)
	}
	_, _ = io.Copy(os.Stdout, c)
	os.Exit(0)
}

// Invariant: qemu: A backend's socket accepts only the QEMU that was started.
func TestOnlyTheChosenProcessIsLetIn(t *testing.T) {
	for name, vfioUser := range map[string]bool{"vhost-user": false, "vfio-user": true} {
		t.Run(name, func(t *testing.T) {
			conns := make(chan *net.UnixConn, 2)
			b := testkit.Must(newBackendSocket(func(c *net.UnixConn) { conns <- c }, vfioUser))(t)
			defer b.close()
			cmd := exec.Command("/proc/self/exe")
			ours, theirs := "@"+b.name, "@"+b.name
			if vfioUser {
				cmd.ExtraFiles = []*os.File{b.file}
				ours, theirs = fdPath(int(b.file.Fd())), fdPath(3)
			}
			cmd.Env = append(os.Environ(), envCaller+"="+theirs)
			in := testkit.Must(cmd.StdinPipe())(t)
			out, err := cmd.StdoutPipe()
			testkit.OK(t, err)
			testkit.OK(t, cmd.Start())
			b.accepting.Go(func() { b.accept(cmd.Process.Pid) })

			for range 3 {
				c := testkit.Must(net.Dial("unix", ours))(t)
				testkit.ErrorIs(t, testkit.Err(c.Read(make([]byte, 1))), io.EOF, "a stranger read")
				_ = c.Close()
			}
			if len(conns) != 0 {
				t.Error("a stranger was let in")
			}
			if _, err := in.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
			c := <-conns
			if _, err := c.Write([]byte("welcome")); err != nil {
				t.Error(err)
			}
			_ = c.Close()
			if greeting, err := io.ReadAll(out); err != nil || string(greeting) != "welcome" {
				t.Errorf("the one that is meant got %q, %v", greeting, err)
			}
			testkit.NoError(t, cmd.Wait())
			if c, err := net.Dial("unix", ours); err == nil { // nobody listens
				_ = c.Close()
				t.Error("a second one could connect")
			}
		})
	}
}
