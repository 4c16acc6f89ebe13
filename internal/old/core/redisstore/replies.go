package redisstore

import (
	"errors"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// wrapped is what Redis 6.2 puts before the error of a command that a script runs. Later versions
// put something after it.
var wrapped = regexp.MustCompile(`^(?:ERR Error running script \(call to \w+\): )?(?:@user_script: ?\d+: )+-?`)

// said returns what a server replied with an error, of a script that of the command in it; "" if
// it did not.
func said(err error) string {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	return strings.TrimPrefix(wrapped.ReplaceAllString(reply.Error(), ""), "ERR ")
}

// says reports whether a server replied with an error that begins with one of the prefixes.
func says(err error, prefixes ...string) bool {
	text := said(err)
	for _, prefix := range prefixes {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}

// unknown reports whether a script is to be sent by its source: then nothing was run.
func unknown(err error) bool { return says(err, "NOSCRIPT") }

// ofKey reports whether an error is about the key alone: it has a value of another type, or one
// that a script cannot read.
func ofKey(err error) bool { return says(err, "WRONGTYPE", "user_script:") }

// ofHashSlot reports whether an error is about the hash slot alone: a master that works replies
// that it does not serve one, that another does, or that the keys of a question are on two while
// it migrates.
func ofHashSlot(err error) bool {
	return says(err, "CLUSTERDOWN Hash slot not served", "MOVED", "ASK", "TRYAGAIN", "CROSSSLOT")
}

// forbidden reports whether this user may not run a command, or nobody may: it was renamed.
func forbidden(err error) bool {
	return says(err, "NOPERM", "unknown command", "The user executing the script can't run this command",
		"ACL failure in script", "Unknown Redis command", "Unknown command")
}
