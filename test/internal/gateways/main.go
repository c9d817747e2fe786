// Command gateways compares the speed of TCP between one guest and this machine through several gateways.
// test/25-gateways.sh runs it in the guest and on this machine.
//
//	gateways serve                            serves streams on a port of 127.0.0.1, which it prints
//	gateways ROUNDS BYTES NAME=HOST:PORT...   moves bytes to and from each in turn; compares the first with the others
//
// The second form prints a line for each direction and each gateway but the first: the median rates of both in MB/s,
// the median of the rounds' ratios of the two with the least and the greatest, and the number of rounds. Status 1: a
// median ratio is not above 1, or an error.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == "serve":
		err = serve()
	case len(os.Args) > 4:
		err = measure(os.Args[1], os.Args[2], os.Args[3:])
	default:
		err = fmt.Errorf("usage: gateways serve, or gateways ROUNDS BYTES NAME=HOST:PORT")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gateways:", err)
		os.Exit(1)
	}
}

func serve() error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go answer(c)
	}
}

// answer reads "DIRECTION BYTES\n". For "in" it sends the bytes to the guest; else it receives them, and then sends a
// byte.
func answer(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	var direction string
	var n int64
	if _, err := fmt.Fscanf(r, "%s %d\n", &direction, &n); err != nil {
		return
	}
	if direction == "in" {
		_, _ = io.CopyN(c, zeros{}, n)
	} else if _, err := io.CopyN(io.Discard, r, n); err == nil {
		_, _ = c.Write([]byte{1})
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func move(direction, addr string, n int64) (time.Duration, error) {
	c, err := net.DialTimeout("tcp4", addr, 20*time.Second)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return 0, err
	}
	start := time.Now()
	if _, err := fmt.Fprintf(c, "%s %d\n", direction, n); err != nil {
		return 0, err
	}
	if direction == "in" {
		_, err = io.CopyN(io.Discard, c, n)
	} else if _, err = io.CopyN(c, zeros{}, n); err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	return time.Since(start), err
}

func measure(roundsText, bytesText string, gateways []string) error {
	rounds, err := strconv.Atoi(roundsText)
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(bytesText, 10, 64)
	if err != nil {
		return err
	}
	failed := false
	for _, direction := range []string{"out", "in"} {
		rates := make([][]float64, len(gateways))
		for round := range rounds + 1 {
			for i, g := range gateways {
				name, addr, _ := strings.Cut(g, "=")
				d, err := move(direction, addr, n)
				if err != nil {
					return fmt.Errorf("%s %s: %w", direction, name, err)
				}
				if round > 0 { // the first one warms up
					rates[i] = append(rates[i], float64(n)/d.Seconds()/1e6)
				}
			}
		}
		ours, _, _ := strings.Cut(gateways[0], "=")
		for i := 1; i < len(gateways); i++ {
			name, _, _ := strings.Cut(gateways[i], "=")
			var ratios []float64
			for k := range rates[i] {
				ratios = append(ratios, rates[0][k]/rates[i][k])
			}
			slices.Sort(ratios)
			ratio := median(ratios)
			fmt.Printf("%s: %s %.1f MB/s, %s %.1f MB/s, ratio %.2f (%.2f to %.2f in %d rounds)\n", direction, ours,
				median(rates[0]), name, median(rates[i]), ratio, ratios[0], ratios[len(ratios)-1], rounds)
			failed = failed || ratio <= 1
		}
	}
	if failed {
		return fmt.Errorf("not faster than each of the others")
	}
	return nil
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}
