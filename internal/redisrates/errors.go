package redisrates

import (
	"errors"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// What a reply says instead of an answer.
var (
	errReply = errors.New("headgate: the reply of the script is too short")

	errOtherWindow = errors.New("headgate: the clock of Redis shows another window of a calendar than was asked about")

	errForeign = errors.New("headgate: Redis has a value under the name of a limit that is none of headgate's: " +
		"delete it")

	errDamaged = errors.New("headgate: Redis has a value of a limit whose numbers contradict each other: delete it")
)

// aboutHashSlot reports whether an error is about hash slots, and not about the server. Those that pass by themselves
// are told only if they do not.
//
//	ASK, TRYAGAIN                                        pass: a hash slot is on its way to another server
//	MOVED, CROSSSLOT, CLUSTERDOWN Hash slot not served   pass only if the client is one of a Cluster
func aboutHashSlot(err error) (is, passing bool) {
	passing = says(err, "ASK ", "TRYAGAIN")
	return passing || says(err, "MOVED ", "CROSSSLOT", "CLUSTERDOWN Hash slot not served"), passing
}

// serverFailure returns what an error says of the server: nothing if it is about a hash slot only.
func serverFailure(err error) error {
	if is, _ := aboutHashSlot(err); is {
		return nil
	}
	return err
}

// outOfTime reports whether an error says only that there was no answer yet.
func outOfTime(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// replied reports whether an error is what a server replied.
func replied(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// wrapped is what Redis 6.2 puts before the error of a command that a script runs. Later versions put something behind.
var wrapped = regexp.MustCompile(`^(?:ERR Error running script \(call to \w+\): )?(?:@user_script: ?\d+: )+-?`)

// says reports whether a server replied with an error that begins with one of the prefixes.
func says(err error, prefixes ...string) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text := strings.TrimPrefix(wrapped.ReplaceAllString(reply.Error(), ""), "ERR ")
	for _, prefix := range prefixes {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}
