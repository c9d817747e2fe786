//go:build !race

package virtq

const raceEnabled = false
