"""Says whether speculation changed the output: numerics told from bugs. Pure: answers in, a gate's result out."""
