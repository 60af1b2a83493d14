"""The role of this node for each stream: master or slave, in which term, by which rule."""
