// Package conn guards one connection. It watches reads and writes, their amount, and how long the
// connection may be silent, slow or old. It also closes the connection. It knows no other socket,
// no slot and no store but the stores of its limits. What happens goes to an [Owner].
//
// A handler's connection is a [Conn], which Serve puts around the server's. Its [Life] outlives it:
// it has only a weak pointer to the Conn, so a Conn that a handler drops is collected and closed.
//
// There are three locks, from the outermost. The writer's lock orders writes, the sender's guards
// the bytes that are not sent yet, and the third is the Life's. When an Owner is told of an Event,
// only the writer's may be held: a write may find that the client reads too slowly.
package conn
