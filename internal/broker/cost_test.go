package broker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// caller is the environment variable that makes the test's program measure a system call (measure). Its value is the
// sandbox's mode, the call's name in datapath, and a count.
const caller = "VNIC_TEST_CALLER"

func datapath() (map[string]func() error, error) {
	fd, err := unix.Eventfd(1, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	b, one := make([]byte, 8), []byte{1, 0, 0, 0, 0, 0, 0, 0}
	return map[string]func() error{
		"eventfd": func() error {
			_, err := unix.Write(fd, one)
			_, rerr := unix.Read(fd, b)
			return errors.Join(err, rerr)
		},
		"preadv2": func() error {
			if _, err := unix.Preadv2(fd, [][]byte{b}, -1, unix.RWF_NOWAIT); !errors.Is(err, unix.EAGAIN) && err != nil {
				return err
			}
			return nil
		},
		"ppoll": func() error {
			_, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &unix.Timespec{}, nil)
			return err
		},
		// The sandbox's filter also compares an argument of fcntl.
		"fcntl": func() error { _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); return err },
	}, err
}

// measure prints the time of one call of a function of datapath in ns: each of ten runs has a mean, and the time is
// the least of the ten means. The parameter has the form of the value of caller.
func measure(what string) error {
	words := strings.Fields(what)
	n, err := strconv.Atoi(words[2])
	if err != nil {
		return err
	}
	calls, err := datapath()
	if err != nil {
		return err
	}
	if words[0] == On {
		k, err := Start(Config{Mode: On})
		if err != nil {
			return err
		}
		if _, err := k.Confine(On, nil); err != nil {
			return err
		}
		defer k.Close()
	}
	f, least := calls[words[1]], time.Hour
	for range 10 {
		begin := time.Now()
		for range n {
			if err := f(); err != nil {
				return err
			}
		}
		least = min(least, time.Since(begin))
	}
	_, err = fmt.Println(float64(least.Nanoseconds()) / float64(n))
	return err
}

func BenchmarkCall(b *testing.B) {
	for _, name := range []string{"eventfd", "preadv2", "ppoll", "fcntl"} {
		for _, mode := range []string{Off, On} {
			b.Run(name+"/"+mode, func(b *testing.B) {
				least := 0.0
				for b.Loop() {
					cmd := exec.Command("/proc/self/exe")
					cmd.Env, cmd.Stderr = append(os.Environ(), caller+"="+mode+" "+name+" 20000"), os.Stderr
					out, err := cmd.Output()
					testkit.OK(b, err)
					ns, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
					testkit.OK(b, err)
					if least == 0 || ns < least {
						least = ns
					}
				}
				b.ReportMetric(least, "ns/call")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
