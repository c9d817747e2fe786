package lab

import (
	"errors"
	"time"

	"vnic.dev/vnic/internal/wire"
)

// Impairment is what the links of a lab do to the segments that guests send.
type Impairment struct {
	Loss    float64 // probability that a segment is lost: 0 to less than 1
	Reorder float64 // probability that one that is not lost is held back
	// Duplicate and Corrupt are how likely one comes twice, and with a bit that is another one.
	Duplicate, Corrupt float64
	// Delay is how long packets are under way; each takes up to Jitter more or less.
	Delay, Jitter time.Duration
	Seed          uint64 // decides which; each port has its own, counted from it
}

// Check says what is wrong with it, in terms of flags.
func (i Impairment) Check() error {
	for _, p := range []float64{i.Loss, i.Reorder, i.Duplicate, i.Corrupt} {
		if p < 0 || p >= 1 {
			return errors.New("--loss, --reorder, --duplicate, --corrupt: at least 0%, less than 100%")
		}
	}
	if max(i.Delay, i.Jitter) > wire.MaxDelay || min(i.Delay, i.Jitter) < 0 {
		return errors.New("--delay, --jitter: at most an hour")
	}
	return nil
}

// Lossy says whether segments are lost or held back at all.
func (i Impairment) Lossy() bool { return i.up().Lossy() }

// up is what it is to one link. The seed is wanting.
func (i Impairment) up() *wire.Impairment {
	return &wire.Impairment{Loss: i.Loss, Reorder: i.Reorder, Duplicate: i.Duplicate, Corrupt: i.Corrupt,
		Delay: i.Delay, Jitter: i.Jitter}
}

// Impair has every port's link do so.
func (d *Description) Impair(i Impairment) {
	for g := range d.Guests {
		for n := range d.Guests[g].NICs {
			d.Guests[g].NICs[n].Link.Up = *i.up()
		}
	}
	d.Sow(i.Seed)
}

// Sow gives each port's link a seed of its own, counted from one.
func (d *Description) Sow(seed uint64) {
	for g := range d.Guests {
		for n := range d.Guests[g].NICs {
			d.Guests[g].NICs[n].Link.Up.Seed = seed
			seed++
		}
	}
}
